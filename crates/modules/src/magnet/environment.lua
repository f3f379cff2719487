-- The globals of mod_magnet's scripts: the table `lighty`, and other globals of their own for each run.
--
-- Tables here are made once for a Lua state. They hold nothing of a request: what is read or written
-- goes to functions of the host, which know the request that the script runs for.

local host, globals = ...
local setmetatable, getmetatable, rawget = setmetatable, getmetatable, host.rawget
local type, error, tostring, tonumber, next, select = type, error, tostring, tonumber, next, select
local concat = table.concat
local pcall, getfenv = pcall, getfenv

local function text(value, where)
  local kind = type(value)
  if kind == "string" or value == nil then return value end
  if kind == "number" then return tostring(value) end
  error("bad value for " .. where .. " (string expected, got " .. kind .. ")", 3)
end

local function read_only()
  error("lua table is read-only", 2)
end

-- Names and values from a flat list, for `pairs`.
local function iterate(list)
  local index = -1
  return function()
    index = index + 2
    local name = list[index]
    if name ~= nil then return name, list[index + 1] end
  end
end

-- A table that no script can write to.
local function fixed(members)
  local function all() return next, members, nil end
  return host.guard(setmetatable({}, { __index = members, __newindex = read_only, __pairs = all, __metatable = false }))
end

-- Fields and variables: any name; functions of the host read, write and list them.
local function named(where, get, set, list)
  return host.guard(setmetatable({}, {
    __metatable = false,
    __index = function(_, name)
      if type(name) ~= "string" then name = text(name, where) end
      return get(name)
    end,
    __newindex = function(_, name, value)
      if type(value) ~= "string" then value = text(value, where) end
      if type(name) ~= "string" then name = text(name, where) end
      if not set(name, value) then error("couldn't store '" .. name .. "' in " .. where .. "[]", 2) end
    end,
    __pairs = function() return iterate(list()) end,
  }))
end

-- Attributes: a fixed set of names, each with a number for the host.
local function numbered(where, names, get, set)
  local number_of = {}
  for number, name in next, names do number_of[name] = number end
  return host.guard(setmetatable({}, {
    __metatable = false,
    __index = function(_, name)
      local number = number_of[name]
      if number then return get(number) end
    end,
    __newindex = function(_, name, value)
      local number = number_of[name]
      if not number then error("couldn't store '" .. tostring(name) .. "' in " .. where .. "[]", 2) end
      if type(value) ~= "string" then value = text(value, where) end
      if not set(number, value) then error("couldn't store '" .. name .. "' in " .. where .. "[]", 2) end
    end,
    __pairs = function()
      local index = 0
      return function()
        index = index + 1
        local name = names[index]
        if name then return name, get(index) end
      end
    end,
  }))
end

-- As above, but an unknown name is an error.
local function items(names, get, set)
  local number_of = {}
  for number, name in next, names do number_of[name] = number end
  return host.guard(setmetatable({}, {
    __metatable = false,
    __index = function(_, name)
      local number = number_of[name]
      if not number then error("r.req_item['" .. tostring(name) .. "'] invalid", 2) end
      return get(number)
    end,
    __newindex = function(_, name, value)
      local number = number_of[name]
      if not number or not set(number, value) then
        error("r.req_item['" .. tostring(name) .. "'] invalid or read-only", 2)
      end
    end,
    __pairs = function()
      local index = 0
      return function()
        index = index + 1
        local name = names[index]
        if name then return name, get(index) end
      end
    end,
  }))
end

-- Texts and numbers of a short list as one string: the host takes one text faster than many. Other lists stay
-- as they are. `content` has no metatable.
local function joined(content)
  local first = content[1]
  if type(first) == "string" and content[2] == nil then return first end
  local bytes = 0
  for index = 1, 64 do
    local part = content[index]
    if part == nil then return concat(content, "", 1, index - 1) end
    local kind = type(part)
    if kind == "string" then bytes = bytes + #part elseif kind ~= "number" then return content end
    if bytes > 65536 then return content end
  end
  return content
end

-- A body. `get`, `len` and the like are values, `add` and `set` are functions, which can also be called with a colon.
local function body(where, values, functions)
  local calls = {}
  for name, change in next, functions do
    -- Of several arguments the last one counts, as in lighttpd.
    calls[name] = function(first, second, third)
      if third ~= nil then first = third elseif second ~= nil then first = second end
      local kind = type(first)
      if kind == "table" then
        if getmetatable(first) == nil and first[1] ~= nil then
          change(joined(first))
          return first
        end
      elseif kind == "number" then first = tostring(first)
      elseif kind ~= "string" and kind ~= "nil" then
        error("bad argument #1 to '" .. name .. "' (string or table expected, got " .. kind .. ")", 2)
      end
      change(first)
      return first
    end
  end
  return host.guard(setmetatable({}, {
    __metatable = false,
    __index = function(_, name)
      local value = values[name]
      if value then return value() end
      local call = calls[name]
      if not call then error(where .. " invalid method or param", 2) end
      return call
    end,
    __newindex = read_only,
    __pairs = function()
      local list = {}
      for name in next, values do
        if name ~= "get" and name ~= "collect" then
          list[#list + 1] = name
          list[#list + 1] = values[name]()
        end
      end
      return iterate(list)
    end,
  }))
end

-- The requests -------------------------------------------------------------------------------------

local req_header = named("r.req_header", host.req_header_get, host.req_header_set, host.req_header_list)
local resp_header = named("r.resp_header", host.resp_header_get, host.resp_header_set, host.resp_header_list)
local req_env = named("r.req_env", host.req_env_get, host.req_env_set, host.req_env_list)
local req_attr = numbered("r.req_attr", host.attributes, host.attribute_get, host.attribute_set)

local r = fixed {
  req_header = req_header,
  resp_header = resp_header,
  req_env = req_env,
  req_attr = req_attr,
  req_item = items(host.items, host.item_get, host.item_set),
  req_body = body("r.req_body", host.req_body, host.req_body_changes),
  resp_body = body("r.resp_body", host.resp_body, host.resp_body_changes),
}

-- What a file is -----------------------------------------------------------------------------------

local format = { [4096] = "is_fifo", [8192] = "is_char", [16384] = "is_dir", [24576] = "is_block",
  [32768] = "is_file", [40960] = "is_link", [49152] = "is_socket" }

-- The key of a stat object's path. Scripts do not have this key.
local path_key = {}

local function time(object, seconds, nanoseconds)
  return function() return object[seconds], object[nanoseconds] end
end

-- Values that are rarely used are looked up when a script reads them.
local later = {
  st_mtim = function(s) return time(s, "st_mtime", "mtime_nsec") end,
  st_atim = function(s) return time(s, "st_atime", "atime_nsec") end,
  st_ctim = function(s) return time(s, "st_ctime", "ctime_nsec") end,
  etag = function(s) return host.stat_etag(s[path_key]) end,
  ["content-type"] = function(s) return host.stat_content_type(s[path_key]) end,
  ["http-response-send-file"] = function(s) return host.stat_send_file(s[path_key]) end,
}
for index, name in next, { "st_uid", "st_gid", "st_atime", "st_ctime", "atime_nsec", "ctime_nsec" } do
  later[name] = function(s) return (select(index, host.stat_rest(s[path_key]))) end
end

local stat_meta = {
  __metatable = false,
  __index = function(s, name)
    local find = later[name]
    if find then return find(s) end
    error('stat["field"] invalid: ' .. tostring(name), 2)
  end,
  __newindex = read_only,
  __pairs = function(s)
    local all = {}
    for name, value in next, s do
      if name ~= path_key and name ~= "mtime_nsec" then all[name] = value end
    end
    for _, name in next, { "st_uid", "st_gid", "st_atime", "st_ctime", "st_mtim", "st_atim", "st_ctim", "etag", "content-type" } do
      all[name] = s[name]
    end
    return next, all, nil
  end,
}

local function stat(path)
  if path == nil then return nil end
  if type(path) ~= "string" then path = text(path, "stat") end
  local mode, size, inode, modified, modified_ns = host.stat(path)
  if mode == false then mode, size, inode, modified, modified_ns = host.stat_unopened(path) end
  if mode == nil then return nil end
  local object = {
    [path_key] = path,
    is_file = false, is_dir = false, is_char = false, is_block = false, is_socket = false, is_link = false,
    is_fifo = false,
    st_mode = mode, st_size = size, st_ino = inode, st_mtime = modified, mtime_nsec = modified_ns,
  }
  local kind = format[mode - mode % 4096]
  if kind then object[kind] = true end
  return setmetatable(object, stat_meta)
end

local c = host.functions
c.stat = stat

-- The server ---------------------------------------------------------------------------------------

local statistics = host.guard(setmetatable({}, {
  __metatable = false,
  __index = function(_, name) return host.statistic_get(text(name, "plugin_stats")) end,
  __newindex = function(_, name, value)
    local number = tonumber(value)
    if number == nil then
      error("bad value for plugin_stats (number expected, got " .. type(value) .. ")", 2)
    end
    host.statistic_set(text(name, "plugin_stats"), number)
  end,
  __pairs = function() return iterate(host.statistic_list()) end,
}))

local stats = host.guard(setmetatable({}, {
  __metatable = false,
  __index = function(_, name)
    local value = host.server_stat(text(name, "server.stats"))
    if value == nil then error("server.stats['" .. tostring(name) .. "'] invalid", 2) end
    return value
  end,
  __newindex = read_only,
  __pairs = function()
    return iterate {
      "uptime", host.server_stat("uptime"),
      "version", host.server_stat("version"),
      "clients_open", host.server_stat("clients_open"),
    }
  end,
}))

local server = fixed {
  irequests = function()
    local others = host.other_requests()
    local index = 0
    return function()
      index = index + 1
      if index == 1 then return r end
      return others[index - 1]
    end
  end,
  plugin_stats = statistics,
  stats = stats,
}

-- lighty -------------------------------------------------------------------------------------------

local shared = {
  r = r,
  c = fixed(c),
  server = server,
  stat = stat,
  request = req_header,
  env = req_attr,
  req_env = req_env,
  status = statistics,
  RESTART_REQUEST = 99,
}

local lighty_meta = {
  __metatable = false,
  __index = function(lighty, name)
    local value = shared[name]
    if value ~= nil then return value end
    if name == "header" or name == "content" then
      value = {}
      lighty[name] = value
      return value
    end
  end,
  __pairs = function(lighty)
    local all = {}
    for name, value in next, shared do all[name] = value end
    for name, value in next, lighty do all[name] = value end
    return next, all, nil
  end,
}

-- The table of the script that has called the module.
local function lighty_of_script()
  for level = 3, 200 do
    local is_there, env = pcall(getfenv, level)
    if not is_there then return nil end
    local lighty = rawget(env, "lighty")
    if lighty then return lighty end
  end
end

-- What modules get as `lighty`: they are loaded once for all scripts.
local lighty_of_modules = host.guard(setmetatable({}, {
  __metatable = false,
  __index = function(_, name)
    local value = shared[name]
    if value ~= nil then return value end
    local lighty = lighty_of_script()
    return lighty and lighty[name]
  end,
  __newindex = function(_, name, value)
    local lighty = lighty_of_script()
    if not lighty then error("no script of mod_magnet has called this", 2) end
    lighty[name] = value
  end,
}))

local function log(...)
  local words = { ... }
  for index = 1, select("#", ...) do words[index] = tostring(words[index]) end
  host.print(concat(words, "\t"))
end

-- All globals in one table, which saves a look-up.
local found = {}
for name, value in next, globals do found[name] = value end
found.print = log

local globals_meta = { __index = found, __metatable = false }

-- A function for the results of a run: what its script has returned, what it has left in `lighty.content`, and
-- `lighty.header` if a name or value in it is neither text nor number. Otherwise its fields are set in the answer
-- here, and if `clears`, they are removed from the table, which the next run gets.
local set_field = host.resp_header_set
local function finisher(clears)
  return function(lighty, value)
    local content, header = rawget(lighty, "content"), rawget(lighty, "header")
    if type(content) == "table" then
      if getmetatable(content) ~= nil then
        if rawget(content, 1) == nil then content = nil end
      elseif content[1] == nil then content = nil
      else content = joined(content) end
    end
    if type(header) == "table" then
      for name, word in next, header do
        if type(word) == "number" then word = tostring(word) end
        if type(name) ~= "string" or type(word) ~= "string" then return value, content, header end
        set_field(name, word)
        if clears then header[name] = nil end
      end
    end
    if content == nil then return value end
    return value, content
  end
end
local finish, finish_and_clear = finisher(false), finisher(true)

-- The globals of a new run, and how it is finished. `env` and `lighty` are those of an earlier run, if nothing
-- refers to them any more, as after a plain script. They are used again unless that run has added a name.
local none
local function environment(env, lighty, is_plain)
  local finish = is_plain and finish_and_clear or finish
  if env then
    local header = rawget(lighty, "header")
    lighty.content, lighty.header, env._G, env.lighty = nil, nil, nil, nil
    if next(lighty) == nil and next(env) == nil then
      env._G, env.lighty = env, lighty
      -- It has room for the names that the script sets.
      if type(header) == "table" and getmetatable(header) == nil and next(header) == nil then
        lighty.header = header
      end
      return env, finish, lighty
    end
  end
  -- Room for the two names that scripts set, which are not there yet.
  lighty = setmetatable({ content = none, header = none }, lighty_meta)
  env = setmetatable({ _G = false, lighty = false }, globals_meta)
  env._G = env
  env.lighty = lighty
  return env, finish, lighty
end

return environment, lighty_of_modules
