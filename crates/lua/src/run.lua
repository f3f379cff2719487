-- Runs scripts in coroutines that are used again: one call makes the environment and runs the script.
local yield, setfenv, pcall, error, type = coroutine.yield, setfenv, pcall, error, type
local native_xpcall, native_traceback = xpcall, debug.traceback
local DONE, WAIT = ...

local function loop(run, environment, argument)
   while true do
      if environment then
         local globals, finish, kept = environment()
         setfenv(run, globals)
         if finish then
            run, environment, argument = yield(DONE, finish(kept, run()))
         else
            run, environment, argument = yield(DONE, run())
         end
      else
         run, environment, argument = yield(DONE, run(argument))
      end
   end
end

local function settled(ok, ...)
   if ok then
      return ...
   end
   error((...), 2)
end

-- A function that waits: `start` begins what is waited for, the driver resumes with how it went.
local function waiting(start)
   return function(...)
      start(...)
      return settled(yield(WAIT))
   end
end

-- A message handler runs where hooks do not: this one runs it after the stack is unwound, where an endless
-- loop can be stopped. debug.traceback shows the stack of the error as long as it runs.
local unwound

local function capture(message)
   unwound = native_traceback("", 2)
   return message
end

local function handled(handler, ok, ...)
   if ok then
      return true, ...
   end
   local _, result = pcall(handler, ...)
   unwound = nil
   return false, result
end

local function xpcall(f, handler, ...)
   if handler == nil then
      error("bad argument #2 to 'xpcall' (value expected)", 2)
   end
   return handled(handler, native_xpcall(f, capture, ...))
end

local function traceback(message, ...)
   if unwound == nil or (message ~= nil and type(message) ~= "string") then
      return native_traceback(message, ...)
   end
   return (message or "") .. unwound
end

return loop, waiting, xpcall, traceback, native_traceback
