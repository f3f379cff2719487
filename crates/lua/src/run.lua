-- Runs scripts in coroutines that are reused: one call makes the environment and runs the script.
local yield, setfenv, pcall, error, type = coroutine.yield, setfenv, pcall, error, type
local native_xpcall, native_traceback, running = xpcall, debug.traceback, coroutine.running
local DONE, WAIT = ...

-- A coroutine for a script: resumed without arguments, it runs the script in an environment of its own. After
-- a plain script nothing refers to the tables of the environment any more, so `environment` may reuse them.
local function of_script(run, environment, is_plain)
   return function()
      local globals, finish, kept
      while true do
         local before = globals
         globals, finish, kept = environment(is_plain and globals, kept, is_plain)
         if globals ~= before then setfenv(run, globals) end
         if finish then
            yield(DONE, finish(kept, run()))
         else
            yield(DONE, run())
         end
      end
   end
end

-- A coroutine for functions that scripts have made.
local function of_function(run, argument)
   while true do
      run, argument = yield(DONE, run(argument))
   end
end

local function settled(ok, ...)
   if ok then
      return ...
   end
   error((...), 2)
end

-- A function that waits: `start` begins the wait, and the driver resumes with the result.
local function waiting(start)
   return function(...)
      start(...)
      return settled(yield(WAIT))
   end
end

-- A message handler runs where hooks do not reach: this one is run after the stack is unwound, where an endless
-- loop can be stopped. debug.traceback shows the stack of the error meanwhile, to its coroutine only, because it may
-- wait and other coroutines have stacks of their own.
local unwound = setmetatable({}, { __mode = "k" })

local function capture(message)
   unwound[running()] = native_traceback("", 2)
   return message
end

local function handled(handler, ok, ...)
   if ok then
      return true, ...
   end
   local _, result = pcall(handler, ...)
   unwound[running()] = nil
   return false, result
end

local function xpcall(f, handler, ...)
   if handler == nil then
      error("bad argument #2 to 'xpcall' (value expected)", 2)
   end
   return handled(handler, native_xpcall(f, capture, ...))
end

local function traceback(message, ...)
   local stack = unwound[running()]
   if stack == nil or (message ~= nil and type(message) ~= "string") then
      return native_traceback(message, ...)
   end
   return (message or "") .. stack
end

return of_script, of_function, waiting, xpcall, traceback, native_traceback
