-- Basic functions. Chunks are accepted in text form only, a script can change only its own environments, and
-- raw access and the collector are limited.

local host = ...
local globals = host.globals
local type, error, select, tostring, tonumber = globals.type, globals.error, globals.select, globals.tostring, globals.tonumber
local rawget, rawset = globals.rawget, globals.rawset
host.rawget = rawget
local getmetatable, setmetatable, pcall = globals.getmetatable, globals.setmetatable, globals.pcall
local getfenv, setfenv, loadstring, ipairs = globals.getfenv, globals.setfenv, globals.loadstring, globals.ipairs
local collectgarbage = globals.collectgarbage
local byte, sub, gsub, concat, find = globals.string.byte, globals.string.sub, globals.string.gsub, globals.table.concat, globals.string.find
local explain, count_jumps = host.rust.explain, host.rust.count_jumps
local jumps_max = host.limits.jumps_max
local unpack, print = globals.unpack, globals.print
local is_protected = host.is_protected
local source_bytes_max = host.limits.source_bytes_max

-- Files belong to the site, so they may be longer than texts that a script generates.
local file_bytes_max = 16 * 2 ^ 20

-- The unprotected functions, for the other files here.
host.getfenv, host.setfenv = getfenv, setfenv

-- Environments -------------------------------------------------------------------------------------

local environment_meta = { __index = globals, __metatable = false }

-- A fresh set of global variables: reads fall back to the libraries, writes stay in the table.
local function environment()
  local env = setmetatable({}, environment_meta)
  env._G = env
  return env
end
host.environment = environment
host.environment_meta = environment_meta

-- The environments of modules, which all runs share. Only the module itself may replace them, while it loads.
-- Afterwards it cannot be distinguished from a script, whose tail call leaves no level of its own on the
-- stack.
local shared = setmetatable({}, { __mode = "k" })
local loading = setmetatable({}, { __mode = "k" })
host.shared_environments, host.loading_environments = shared, loading

local function is_private(env)
  return env == globals
end

-- The environment of the nearest function of a script. Petrel's own functions and those of C have the
-- environment `globals` and are skipped.
local function script_environment()
  local level = 1
  while true do
    local ok, env = pcall(getfenv, level)
    if not ok then return environment() end
    if not is_private(env) then return env end
    level = level + 1
  end
end
host.script_environment = script_environment

function globals.getfenv(target)
  if type(target) == "function" then
    local env = getfenv(target)
    if is_private(env) then env = script_environment() end
    return env
  end
  local level = tonumber(target == nil and 1 or target)
  if level == nil then error("bad argument #1 to 'getfenv' (number expected, got " .. type(target) .. ")", 2) end
  if level == 0 then return script_environment() end
  if level < 0 then error("bad argument #1 to 'getfenv' (invalid level)", 2) end
  local ok, env = pcall(getfenv, level + 2)
  if not ok then error("bad argument #1 to 'getfenv' (invalid level)", 2) end
  if is_private(env) then env = script_environment() end
  return env
end

function globals.setfenv(target, env)
  if type(env) ~= "table" then
    error("bad argument #2 to 'setfenv' (table expected, got " .. type(env) .. ")", 2)
  end
  if type(target) == "function" then
    local old = getfenv(target)
    if is_private(old) or shared[old] then
      error("'setfenv' cannot change the environment of a function that others share", 2)
    end
    return setfenv(target, env)
  end
  local level = tonumber(target)
  if level == nil then error("bad argument #1 to 'setfenv' (number expected, got " .. type(target) .. ")", 2) end
  if level == 0 then error("'setfenv' cannot change the environment of the whole program", 2) end
  local ok, old = pcall(getfenv, level + 2)
  if not ok or level < 0 then error("bad argument #1 to 'setfenv' (invalid level)", 2) end
  if is_private(old) or (shared[old] and not (level == 1 and loading[old])) then
    error("'setfenv' cannot change the environment of a function that others share", 2)
  end
  local changed = setfenv(level + 1, env)
  return changed
end

-- Chunks -------------------------------------------------------------------------------------------

local binary_refused = "binary chunks are not accepted"

-- Compiles `source` into a function whose globals are `env`.
local function compile(source, name, mode, env)
  if byte(source) == 27 then return nil, binary_refused end
  if mode ~= nil and not find(mode, "t", 1, true) then
    return nil, "attempt to load chunk with wrong mode"
  end
  local chunk, message = loadstring(source, name)
  if chunk == nil then
    local reason = explain(source)
    if reason then message = message .. " (" .. reason .. ")" end
    return nil, message
  end
  setfenv(chunk, env)
  return chunk
end

-- The pieces that a reader function returns. The reader may wait, because it is called from Lua.
local function read_pieces(reader)
  local pieces, count, bytes = {}, 0, 0
  while true do
    local piece = reader()
    if piece == nil or piece == "" then break end
    if type(piece) ~= "string" then return nil, "reader function must return a string" end
    count = count + 1
    bytes = bytes + #piece
    if bytes > source_bytes_max then
      return nil, "chunk of more than " .. source_bytes_max .. " bytes"
    end
    pieces[count] = piece
  end
  return concat(pieces)
end

-- Each further jump of an expression or a block makes the compiler walk along all the earlier ones.
local function compile_made(source, name, mode, env)
  if #source > jumps_max and count_jumps(source) > jumps_max then
    return nil, "chunk with more than " .. jumps_max .. " and, or, elseif, break and goto"
  end
  return compile(source, name, mode, env)
end

local function load_with(default, chunk, name, mode, env_count, env)
  if env_count == 0 then env = default end
  if type(env) ~= "table" then return nil, "the environment of a chunk must be a table" end
  if type(chunk) == "function" then
    local source, message = read_pieces(chunk)
    if source == nil then return nil, message end
    return compile_made(source, name or "=(load)", mode, env)
  end
  if type(chunk) == "number" then chunk = tostring(chunk) end
  if type(chunk) == "string" and #chunk > source_bytes_max then
    return nil, "chunk of more than " .. source_bytes_max .. " bytes"
  end
  if type(chunk) ~= "string" then
    error("bad argument #1 to 'load' (function or string expected, got " .. type(chunk) .. ")", 3)
  end
  return compile_made(chunk, name or chunk, mode, env)
end

function globals.load(chunk, name, mode, ...)
  local loaded, message = load_with(script_environment(), chunk, name, mode, select("#", ...), (...))
  return loaded, message
end

function globals.loadstring(chunk, name)
  local loaded, message = load_with(script_environment(), chunk, name, nil, 0)
  return loaded, message
end

-- The content of a file, up to a little more than the limit. It is read in pieces: a buffer of the largest
-- size would stay with the state.
local function read_all(file)
  local pieces, count, bytes = {}, 0, 0
  while bytes <= file_bytes_max do
    local piece, message = file:read(65536)
    if message then return nil, message end
    if piece == nil then break end
    count, bytes = count + 1, bytes + #piece
    pieces[count] = piece
  end
  return concat(pieces)
end

-- The text of a Lua file. A first line for the shell becomes an empty one.
local function read_file(path)
  local file, message = host.open_file(path, "rb")
  if file == nil then return nil, "cannot open " .. message end
  local source
  source, message = read_all(file)
  file:close()
  if message then return nil, "cannot read " .. path .. ": " .. tostring(message) end
  if #source > file_bytes_max then return nil, path .. " is longer than " .. file_bytes_max .. " bytes" end
  if sub(source, 1, 3) == "\239\187\191" then source = sub(source, 4) end
  if byte(source) == 35 then source = gsub(source, "^[^\n]*", "", 1) end
  return source
end

-- Compiles the file at `path`. Returns `nil, message` if it cannot be read or compiled.
function host.compile_file(path, mode, env)
  local source, message = read_file(path)
  if source == nil then return nil, message end
  return compile(source, "@" .. path, mode, env)
end
local compile_file = host.compile_file

function globals.loadfile(path, mode, ...)
  if type(path) ~= "string" then error("'loadfile' needs the name of a file", 2) end
  local env = script_environment()
  if select("#", ...) > 0 then env = (...) end
  if type(env) ~= "table" then return nil, "the environment of a chunk must be a table" end
  local loaded, message = compile_file(path, mode, env)
  return loaded, message
end

function globals.dofile(path)
  if type(path) ~= "string" then error("'dofile' needs the name of a file", 2) end
  local chunk, message = compile_file(path, nil, script_environment())
  if chunk == nil then error(message, 2) end
  return chunk()
end

-- Raw access ---------------------------------------------------------------------------------------

function globals.rawset(t, key, value)
  if is_protected[t] then error("'rawset' cannot change a library", 2) end
  return rawset(t, key, value)
end

function globals.rawget(t, key)
  if is_protected[t] then return t[key] end
  return rawget(t, key)
end

-- `ipairs` of Lua 5.3, which includes elements that a metatable supplies.
local function next_element(t, index)
  index = index + 1
  local value = t[index]
  if value ~= nil then return index, value end
end

function globals.ipairs(...)
  local t = ...
  local meta = getmetatable(t)
  if meta == nil or t == nil or type(t) == "string" then return ipairs(...) end
  if type(meta) == "table" and rawget(meta, "__ipairs") then return ipairs(...) end
  return next_element, t, 0
end

-- Kibibytes of one step of the collector.
local collector_step = 256

-- The collector serves all runs of the state: a script may query it and trigger a collection, but not tune
-- it.
-- A full collection is done in steps, between which the budget is checked.
function globals.collectgarbage(what, size)
  if what == nil or what == "collect" then
    repeat until collectgarbage("step", collector_step)
    return 0
  end
  if what == "count" then return collectgarbage("count") end
  if what == "step" then
    size = tonumber(size) or 0
    return collectgarbage("step", size < collector_step and size or collector_step)
  end
  if what == "isrunning" then return true end
  if what == "stop" or what == "restart" or what == "setpause" or what == "setstepmul"
    or what == "generational" or what == "incremental" then
    return 0
  end
  error("bad argument #1 to 'collectgarbage' (invalid option '" .. tostring(what) .. "')", 2)
end

-- A script's __tostring is called from Lua and not from a C function, where each level would use some of the
-- C stack.
function globals.print(...)
  local words, count = { ... }, select("#", ...)
  for index = 1, count do words[index] = tostring(words[index]) end
  print(unpack(words, 1, count))
end

-- A finaliser runs where no hook can stop it, during any run. Only `newproxy` can set one.
host.newproxy = globals.newproxy
globals.newproxy = nil
globals.gcinfo = nil

-- Warnings of Lua 5.4 go where the host sends them. "@on" and "@off" last as long as the run.
function globals.warn(...)
  local text = ...
  if select("#", ...) == 1 and (text == "@on" or text == "@off") then
    host.set_slot("warn", text)
    return
  end
  if host.slot("warn") == "@off" then return end
  local parts = { ... }
  for index = 1, select("#", ...) do
    if type(parts[index]) ~= "string" and type(parts[index]) ~= "number" then
      error("bad argument #" .. index .. " to 'warn' (string expected, got " .. type(parts[index]) .. ")", 2)
    end
  end
  globals.print("warning: " .. concat(parts))
end
