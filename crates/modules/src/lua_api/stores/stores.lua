-- petrel.redis and petrel.memcached: objects whose methods wait for a store.
--
-- A failure is nil and a message; the script goes on.
local connect_redis, redis_command, redis_pipeline, connect_memcached, memcached = ...
local select, setmetatable, upper, type, error = select, setmetatable, string.upper, type, error

-- Each method of Redis is the command of that name. It is made once; their number is limited.
local commands, left = {}, 1000
local redis = { __metatable = false }

function commands.command(self, ...)
   return redis_command(self[1], ...)
end

-- r:pipeline { { "set", "a", 1 }, { "get", "a" } }: a list with the reply to each.
function commands.pipeline(self, list)
   return redis_pipeline(self[1], list)
end

function redis.__index(_, name)
   local method = commands[name]
   if method == nil then
      if type(name) ~= "string" then
         return nil
      end
      local command = upper(name)
      method = function(self, ...)
         return redis_command(self[1], command, ...)
      end
      if left > 0 then
         commands[name], left = method, left - 1
      end
   end
   return method
end

local methods = {}
for _, name in ipairs {
   "get", "gets", "get_many", "set", "add", "replace", "append", "prepend", "cas", "delete", "incr", "decr",
   "touch", "flush_all", "version",
} do
   local call = memcached[name]
   methods[name] = function(self, ...)
      return call(self[1], ...)
   end
end
local store = { __index = methods, __metatable = false }

return function(options)
   return setmetatable({ connect_redis(options) }, redis)
end, function(options)
   return setmetatable({ connect_memcached(options) }, store)
end
