-- Files and the operating system: what reaches beyond the run is not offered, or lasts as long as
-- the run. What is left waits for the disk while the worker stands still; `petrel.*` has functions
-- that do not.

local host = ...
local globals = host.globals
local options = host.options
local io, os, string = globals.io, globals.os, globals.string
local type, error, next, getmetatable = globals.type, globals.error, globals.next, globals.getmetatable
local open, lines_of, io_type, close = io.open, io.lines, io.type, io.close
local stdin, stdout = io.stdin, io.stdout
local sub = string.sub

-- Files --------------------------------------------------------------------------------------------

-- The methods of files stay where no script can change them.
local file_meta = getmetatable(stdout)
local methods = {}
for name, method in next, file_meta do
  if sub(name, 1, 2) ~= "__" then methods[name] = method end
end
file_meta.__index = methods
file_meta.__metatable = false

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
  return lines_of(name, ...)
end

if not options.io_popen then
  io.popen = nil
  os.execute = nil
end

-- The operating system -----------------------------------------------------------------------------

if not options.os_exit then os.exit = nil end

-- The locale belongs to the process: a script may ask for it.
function os.setlocale(locale)
  if locale == nil or locale == "" or locale == "C" or locale == "POSIX" then return "C" end
  return nil
end
