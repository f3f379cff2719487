-- The globals of CML scripts: their own functions in a table, through which everything else is visible.
local globals, native = ...
local setmetatable, rawset, next, select = setmetatable, rawset, next, select
local tostring, error, concat = tostring, error, table.concat

-- Tables about the request, filled when they are first used.
local function lazy(fill)
   local function filled(t)
      fill(t)
      return t
   end
   return {
      __metatable = false,
      __index = function(t, key) return filled(t)[key] end,
      __newindex = function(t, key, value) filled(t)[key] = value end,
      __pairs = function(t) return next, filled(t), nil end,
      __len = function(t) return #filled(t) end,
   }
end

local request_meta = {
   __metatable = false,
   __index = function(t, key)
      local value = native.request(key)
      if value ~= nil then
         rawset(t, key, value)
      end
      return value
   end,
   __pairs = function(t)
      native.fill_request(t)
      return next, t, nil
   end,
}
local get_meta, cookie_meta = lazy(native.fill_get), lazy(native.fill_cookie)
local session_meta = {
   __metatable = false,
   __index = function(_, key) return native.session(key) end,
}

local api = {
   CACHE_HIT = 0,
   CACHE_MISS = 1,
   crypto = setmetatable({}, {
      __metatable = false,
      __index = { md5 = native.md5 },
      __newindex = function() error("crypto cannot be changed", 2) end,
   }),
}
for name, value in next, native.functions do
   api[name] = value
end
api.fragment = globals.petrel.fragment

function api.print(...)
   local words = { ... }
   for i = 1, select("#", ...) do
      words[i] = tostring(words[i])
   end
   native.print(concat(words, "\t"))
end

-- A loop over the names in a directory: `for name in dir_files(path) do`.
function api.dir_files(path)
   local names, i = native.names_in(path), 0
   return function()
      i = i + 1
      return names[i]
   end
end

setmetatable(api, { __index = globals })
local meta = { __index = api, __metatable = false }
local latest

local function environment()
   local env = setmetatable({
      request = setmetatable({}, request_meta),
      get = setmetatable({}, get_meta),
      cookie = setmetatable({}, cookie_meta),
      session = setmetatable({}, session_meta),
   }, meta)
   env._G = env
   latest = env
   return env
end

-- The globals that were made last.
local function take()
   local env = latest
   latest = nil
   return env
end

return environment, take
