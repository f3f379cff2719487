-- Files and the operating system. What would affect other runs is not offered, or lasts only as long as the
-- run. Threads read and write files while the script waits.

local host = ...
local globals = host.globals
local options = host.options
local io, os = globals.io, globals.os
local type, error, select, unpack = globals.type, globals.error, globals.select, globals.unpack
local tostring, tonumber, getmetatable, setmetatable = globals.tostring, globals.tonumber, globals.getmetatable, globals.setmetatable
local find, format = globals.string.find, globals.string.format
local files = host.rust.files
local take, put, is_open, has_written = files.take, files.put, files.is_open, files.has_written
local native_type = io.type

-- Files --------------------------------------------------------------------------------------------

-- A script gets a proxy; the file itself is a handle of Rust. `files.run(operation, handle, ...)` may make
-- the script wait until a thread has performed it, and returns `true, value` or `nil, message, code`.
local file_bytes_max = host.limits.file_bytes_max
local handles = setmetatable({}, { __mode = "k" })
local methods = {}
local prototype = host.newproxy(true)
local meta = getmetatable(prototype)
meta.__index, meta.__metatable = methods, false

local function proxy_of(handle)
  local file = host.newproxy(prototype)
  handles[file] = handle
  return file
end

local function handle_of(file, name)
  local handle = handles[file]
  if handle == nil then error("bad argument #1 to '" .. name .. "' (a file is expected, got " .. type(file) .. ")", 3) end
  if not is_open(handle) then error("attempt to use a closed file", 3) end
  return handle
end

function meta.__tostring(file)
  local handle = handles[file]
  if handle == nil or not is_open(handle) then return "file (closed)" end
  return format("file (%p)", handle)
end

local function path_of(path, index, name)
  if type(path) == "number" then path = tostring(path) end
  if type(path) ~= "string" then
    error("bad argument #" .. index .. " to '" .. name .. "' (string expected, got " .. type(path) .. ")", 3)
  end
  return path
end

local function type_of(file)
  local handle = handles[file]
  if handle == nil then return native_type(file) end
  return is_open(handle) and "file" or "closed file"
end
io.type = type_of

local function open(path, mode)
  local done, handle, code = files.run("open", path, mode or "r")
  if done then return proxy_of(handle) end
  if code == 22 and handle == "Invalid argument" then handle = path .. ": " .. handle end
  return nil, handle, code
end
host.open_file = open

function io.open(path, mode)
  if type(path) == "number" then path = tostring(path) end
  if type(path) ~= "string" then error("bad argument #1 to 'open' (string expected, got " .. type(path) .. ")", 2) end
  if mode ~= nil and type(mode) ~= "string" then error("bad argument #2 to 'open' (string expected, got " .. type(mode) .. ")", 2) end
  local file, message, code = open(path, mode)
  if file == nil then return nil, message, code end
  return file
end

function io.tmpfile()
  local done, handle, code = files.run("temporary")
  if not done then return nil, handle, code end
  return proxy_of(handle)
end

local function too_much(level)
  error("bad argument to 'read' (more than " .. file_bytes_max .. " bytes)", level + 1)
end

local function flush(handle)
  if not has_written(handle) then return true end
  return files.run("flush", handle)
end

local function read_one(handle, what)
  local done, message, code = flush(handle)
  if not done then return nil, message, code end
  while true do
    local state, value = take(handle, what)
    if state == "done" then
      if value ~= nil and type(what) == "string" and find(what, "^%*?n") then value = tonumber(value) end
      return value
    end
    if state == "too much" then too_much(4) end
    if state ~= "more" then error("bad argument to 'read' (invalid format)", 4) end
    local total
    done, total, code = files.run("fill", handle, value)
    if not done then return nil, total, code end
    if total > file_bytes_max then too_much(4) end
  end
end

local function read(handle, ...)
  local count = select("#", ...)
  if count == 0 then
    local value, message, code = read_one(handle, "l")
    if message then return nil, message, code end
    return value
  end
  local values, message, code = {}
  for index = 1, count do
    values[index], message, code = read_one(handle, (select(index, ...)))
    if message then return nil, message, code end
    if values[index] == nil then count = index break end
  end
  return unpack(values, 1, count)
end

function methods.read(file, ...) return read(handle_of(file, "read"), ...) end

local function write(file, handle, ...)
  for index = 1, select("#", ...) do
    local text = select(index, ...)
    if type(text) == "number" then text = tostring(text) end
    if type(text) ~= "string" then
      error("bad argument #" .. index .. " to 'write' (string expected, got " .. type(text) .. ")", 3)
    end
    local state = put(handle, text)
    if state == "seek first" then
      local done, message, code = files.run("seek", handle, "cur", 0)
      if not done then return nil, message, code end
      state = put(handle, text)
    end
    if state == "not writable" then return nil, "Bad file descriptor", 9 end
    if state == "flush" then
      local done, message, code = files.run("flush", handle)
      if not done then return nil, message, code end
    end
  end
  return file
end

function methods.write(file, ...) return write(file, handle_of(file, "write"), ...) end

function methods.flush(file)
  local done, message, code = flush(handle_of(file, "flush"))
  if not done then return nil, message, code end
  return true
end

-- What Lua says of a program that has ended.
local function ended(done, how, code)
  if not done then return nil, how, code end
  if how == nil then return true end
  if how == "exit" and code == 0 then return true, how, code end
  return nil, how, code
end

function methods.close(file)
  local handle = handle_of(file, "close")
  -- All runs share the standard streams.
  if files.is_standard(handle) then return nil, "cannot close standard file" end
  if files.close(handle) then return true end
  return ended(files.run("close", handle))
end

function methods.seek(file, whence, offset)
  local handle = handle_of(file, "seek")
  if type(whence) == "number" then whence, offset = nil, whence end
  whence = whence or "cur"
  if whence ~= "set" and whence ~= "cur" and whence ~= "end" then
    error("bad argument #1 to 'seek' (invalid option '" .. tostring(whence) .. "')", 2)
  end
  local done, position, code = files.run("seek", handle, whence, tonumber(offset) or 0)
  if not done then return nil, position, code end
  return position
end

function methods.setvbuf(file, mode)
  files.buffer(handle_of(file, "setvbuf"), mode ~= "no")
  return true
end

local function lines(handle, file, ...)
  local count, formats = select("#", ...), { ... }
  return function()
    if not is_open(handle) then error("file is already closed", 2) end
    local function ended(first, message, ...)
      if first == nil then
        if message and type(message) == "string" then error(message, 3) end
        if file then methods.close(file) end
      end
      return first, message, ...
    end
    return ended(read(handle, unpack(formats, 1, count)))
  end
end

function methods.lines(file, ...) return lines(handle_of(file, "lines"), nil, ...) end

for _, name in globals.ipairs({ "stdin", "stdout", "stderr" }) do
  io[name] = proxy_of(files.standard(name))
end
local stdin, stdout = io.stdin, io.stdout

-- Each run has its own files for `io.read` and `io.write`.
local function chosen(key, standard)
  return host.slot(key) or standard
end

local function choose(key, standard, mode, target)
  if target == nil then return chosen(key, standard) end
  if type(target) == "string" then
    local file, message = open(target, mode)
    if file == nil then error(message, 3) end
    target = file
  elseif type_of(target) == nil then
    error("a file or its name is expected, got " .. type(target), 3)
  end
  host.set_slot(key, target)
  return target
end

function io.input(target)
  local file = choose("io.input", stdin, "r", target)
  return file
end

function io.output(target)
  local file = choose("io.output", stdout, "w", target)
  return file
end

function io.read(...) return chosen("io.input", stdin):read(...) end
function io.write(...) return chosen("io.output", stdout):write(...) end
function io.flush() return chosen("io.output", stdout):flush() end

function io.close(file)
  if file == nil then file = chosen("io.output", stdout) end
  if type_of(file) == nil then error("bad argument #1 to 'close' (a file is expected, got " .. type(file) .. ")", 2) end
  return file:close()
end

function io.lines(name, ...)
  if name == nil then return chosen("io.input", stdin):lines(...) end
  local file, message = open(name, "r")
  if file == nil then error(message, 2) end
  return lines(handles[file], file, ...)
end

-- Programs: the script waits while they work.
if options.io_popen then
  function io.popen(command, mode)
    command = path_of(command, 1, "popen")
    if mode ~= nil and mode ~= "r" and mode ~= "w" then error("bad argument #2 to 'popen' (invalid mode)", 2) end
    local done, handle, code = files.run("popen", command, mode or "r")
    if done then return proxy_of(handle) end
    return nil, handle, code
  end

  function os.execute(command)
    if command == nil then return true end
    return ended(files.run("execute", path_of(command, 1, "execute")))
  end
else
  io.popen, os.execute = nil, nil
end

-- The operating system -----------------------------------------------------------------------------

if not options.os_exit then os.exit = nil end

function os.remove(path)
  local done, message, code = files.run("remove", path_of(path, 1, "remove"))
  if not done then return nil, message, code end
  return true
end

function os.rename(from, to)
  local done, message, code = files.run("rename", path_of(from, 1, "rename"), path_of(to, 2, "rename"))
  if not done then return nil, message, code end
  return true
end

function os.tmpname()
  local done, name = files.run("make name")
  if not done then error("unable to generate a unique filename: " .. name, 2) end
  return name
end

-- C tries a long format again and again with more memory.
local date = os.date
local format_bytes_max = 4096

function os.date(format, ...)
  if type(format) == "string" and #format > format_bytes_max then
    error("bad argument #1 to 'date' (more than " .. format_bytes_max .. " bytes)", 2)
  end
  return date(format, ...)
end

-- The locale belongs to the process: a script may only query it.
function os.setlocale(locale)
  if locale == nil or locale == "" or locale == "C" or locale == "POSIX" then return "C" end
  return nil
end
