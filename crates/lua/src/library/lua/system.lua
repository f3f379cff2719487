-- Files and the operating system: what reaches beyond the run is not offered, or lasts as long as
-- the run. What is left waits for the disk while the worker stands still; `petrel.*` has functions
-- that do not.

local host = ...
local globals = host.globals
local options = host.options
local io, os, string = globals.io, globals.os, globals.string
local type, error, next, getmetatable = globals.type, globals.error, globals.next, globals.getmetatable
local native_open, native_lines_of, io_type, close = io.open, io.lines, io.type, io.close
local is_pipe = host.rust.is_pipe
local stdin, stdout = io.stdin, io.stdout
local sub, byte, concat = string.sub, string.byte, globals.table.concat
local select, unpack = globals.select, globals.unpack

-- Bytes that one call reads at most: what is read in C cannot be stopped, and some files have no end.
local read_bytes_max = 4 * host.limits.string_bytes_max
local read_bytes = 65536

-- Files --------------------------------------------------------------------------------------------

-- To open a pipe is to wait for its other side, with the whole worker, and no budget ends it.
local function is_endless(path)
  return type(path) == "string" and is_pipe(path)
end

local function open(path, ...)
  if is_endless(path) then return nil, path .. ": it is a pipe, which the server would wait for", 11 end
  return native_open(path, ...)
end
io.open = open

local function lines_of(path, ...)
  if is_endless(path) then error(path .. ": it is a pipe, which the server would wait for", 3) end
  return native_lines_of(path, ...)
end

-- The methods of files stay where no script can change them.
local file_meta = getmetatable(stdout)
local methods = {}
for name, method in next, file_meta do
  if sub(name, 1, 2) ~= "__" then methods[name] = method end
end
file_meta.__index = methods
file_meta.__metatable = false

local native_read, native_lines = methods.read, methods.lines

local function is_all(format)
  return type(format) == "string" and (byte(format) == 97 or sub(format, 1, 2) == "*a")
end

local function is_much(format)
  return type(format) == "number" and not (format <= read_bytes_max)
end

local function too_much(level)
  error("bad argument to 'read' (more than " .. read_bytes_max .. " bytes)", level + 1)
end

local function read_all(file)
  local pieces, count, bytes = {}, 0, 0
  while true do
    local piece, message, code = native_read(file, read_bytes)
    if piece == nil then
      if message then return nil, message, code end
      return concat(pieces)
    end
    count, bytes = count + 1, bytes + #piece
    if bytes > read_bytes_max then too_much(3) end
    pieces[count] = piece
  end
end

local function read_one(file, format)
  if is_all(format) then return read_all(file) end
  if is_much(format) then too_much(3) end
  return native_read(file, format)
end

function methods.read(file, ...)
  local count = select("#", ...)
  if count == 0 then return native_read(file) end
  if count == 1 then
    local value, message, code = read_one(file, (...))
    if message then return value, message, code end
    return value
  end
  local values, message, code = {}
  for index = 1, count do
    values[index], message, code = read_one(file, (select(index, ...)))
    if message then return nil, message, code end
    if values[index] == nil then count = index break end
  end
  return unpack(values, 1, count)
end

local function check_lines(...)
  for index = 1, select("#", ...) do
    local format = select(index, ...)
    if is_all(format) or is_much(format) then too_much(3) end
  end
end

function methods.lines(file, ...)
  check_lines(...)
  return native_lines(file, ...)
end

-- The files that `io.read` and `io.write` use are a choice of the run.
local function chosen(key, standard)
  return host.slot(key) or standard
end

local function choose(key, standard, mode, target)
  if target == nil then return chosen(key, standard) end
  if type(target) == "string" then
    local file, message = open(target, mode)
    if file == nil then error(message, 3) end
    target = file
  elseif io_type(target) == nil then
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

function io.read(...) return methods.read(chosen("io.input", stdin), ...) end
function io.write(...) return methods.write(chosen("io.output", stdout), ...) end
function io.flush() return methods.flush(chosen("io.output", stdout)) end
function io.close(file) return close(file or chosen("io.output", stdout)) end

function io.lines(name, ...)
  if name == nil then return methods.lines(chosen("io.input", stdin), ...) end
  check_lines(...)
  return lines_of(name, ...)
end

if not options.io_popen then
  io.popen = nil
  os.execute = nil
end

-- The operating system -----------------------------------------------------------------------------

if not options.os_exit then os.exit = nil end

-- A long format is tried again and again with more room, all in C.
local date = os.date
local format_bytes_max = 4096

function os.date(format, ...)
  if type(format) == "string" and #format > format_bytes_max then
    error("bad argument #1 to 'date' (more than " .. format_bytes_max .. " bytes)", 2)
  end
  return date(format, ...)
end

-- The locale belongs to the process: a script may ask for it.
function os.setlocale(locale)
  if locale == nil or locale == "" or locale == "C" or locale == "POSIX" then return "C" end
  return nil
end
