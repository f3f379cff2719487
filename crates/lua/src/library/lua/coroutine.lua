-- Coroutines of a script, inside a run that is itself a coroutine.
--
-- A function that waits yields the sentinel `host.wait` to the driver of the run. When the sentinel comes out
-- of a coroutine of the script, `resume` passes it on outwards, and passes the driver's answer back in. So a
-- script may wait anywhere.

local host = ...
local globals = host.globals
local coroutine = globals.coroutine
local create, resume, yield, status = coroutine.create, coroutine.resume, coroutine.yield, coroutine.status
local running = coroutine.running
local type, error, setmetatable = globals.type, globals.error, globals.setmetatable
local wait = host.wait

-- thread -> true, or why it may not be resumed: "waiting" inside another resume, or "closed". Threads that
-- are not listed are runs, which only their drivers may resume.
local state = setmetatable({}, { __mode = "k" })

-- The depth limit of nested resumes, as in Lua. Each one uses some of the C stack, whose overflow would end
-- the process. thread -> its depth; a run is not listed.
local nested_max = 200
local depth = setmetatable({}, { __mode = "k" })

-- Notes that the running coroutine resumes `thread`. Returns false if the nesting is too deep.
local function enter(thread)
  local level = (depth[running()] or 0) + 1
  if depth[thread] ~= level then depth[thread] = level end
  return level <= nested_max
end

local function continue(thread, ...)
  state[thread] = true
  return resume(thread, ...)
end

local function settle(thread, ok, ...)
  if ok and ... == wait then
    state[thread] = "waiting"
    return settle(thread, continue(thread, yield(...)))
  end
  return ok, ...
end

local function refuse(thread)
  if type(thread) ~= "thread" then return resume(thread) end
  if state[thread] == "closed" then return false, "cannot resume dead coroutine" end
  if state[thread] == true then return false, "C stack overflow" end
  return false, "cannot resume non-suspended coroutine"
end

function coroutine.create(body)
  local thread = create(body)
  state[thread] = true
  return thread
end

function coroutine.resume(thread, ...)
  if state[thread] ~= true or not enter(thread) then return refuse(thread) end
  return settle(thread, resume(thread, ...))
end

local function unwrap(ok, ...)
  if not ok then error((...), 0) end
  return ...
end

function coroutine.wrap(body)
  local thread = create(body)
  state[thread] = true
  return function(...)
    if state[thread] ~= true or not enter(thread) then return unwrap(refuse(thread)) end
    return unwrap(settle(thread, resume(thread, ...)))
  end
end

function coroutine.status(thread)
  if state[thread] == "closed" then return "dead" end
  return status(thread)
end

-- As in Lua 5.4, a closed coroutine is never resumed again. There are no to-be-closed variables.
function coroutine.close(thread)
  local now = state[thread] == "closed" and "dead" or status(thread)
  if now ~= "suspended" and now ~= "dead" then
    error("cannot close a " .. now .. " coroutine", 2)
  end
  if state[thread] == nil or state[thread] == "waiting" then error("cannot close a waiting coroutine", 2) end
  state[thread] = "closed"
  return true
end
