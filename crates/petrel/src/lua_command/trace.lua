-- Runs a script and records what it does with `lighty` and `petrel`. The server's mod_magnet runs this file
-- in place of the script; the two paths are inserted at its beginning.
local out = assert(io.open(trace_path, "ab"))
out:setvbuf("no")

local type, tostring, select, pairs = type, tostring, select, pairs
local format, find, gsub, sub, concat = string.format, string.find, string.gsub, string.sub, table.concat
local LINE_MAX, DEPTH_MAX, FIELDS_MAX = 200, 2, 8

local function note(what, text)
   if #text > LINE_MAX then
      text = sub(text, 1, LINE_MAX) .. "…"
   end
   out:write(format("%-8s%s\n", what, text))
end

local real_of = setmetatable({}, { __mode = "k" })

local function real(value)
   if value == nil then
      return nil
   end
   return real_of[value] or value
end

local escapes = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ['"'] = '\\"', ["\\"] = "\\\\" }

local function escaped(byte)
   return escapes[byte] or format("\\%03d", byte:byte())
end

local function quoted(text)
   local rest = ""
   if #text > LINE_MAX then
      rest = " … " .. #text .. " bytes"
      text = sub(text, 1, 60)
   end
   return '"' .. gsub(text, '[%c"\\]', escaped) .. '"' .. rest
end

local shown

local function shown_table(value, depth)
   if depth >= DEPTH_MAX then
      return "{…}"
   end
   local parts, count = {}, 0
   for index = 1, #value do
      if count == FIELDS_MAX then
         break
      end
      count = count + 1
      parts[count] = shown(value[index], depth + 1)
   end
   for key, field in pairs(value) do
      if count == FIELDS_MAX then
         parts[count + 1] = "…"
         break
      end
      if not (type(key) == "number" and key >= 1 and key <= #value) then
         count = count + 1
         parts[count] = tostring(key) .. " = " .. shown(field, depth + 1)
      end
   end
   return "{ " .. concat(parts, ", ") .. " }"
end

function shown(value, depth)
   value = real(value)
   if type(value) == "string" then
      return quoted(value)
   end
   if type(value) == "table" then
      return shown_table(value, depth or 0)
   end
   return tostring(value)
end

local function list(...)
   local parts = {}
   for index = 1, select("#", ...) do
      parts[index] = shown((select(index, ...)))
   end
   return concat(parts, ", ")
end

local function path_of(path, key)
   if type(key) == "string" and find(key, "^[%a_][%w_]*$") then
      return path .. "." .. key
   end
   return path .. "[" .. shown(key) .. "]"
end

local function results(path, ...)
   if select("#", ...) > 0 then
      note("", "-> " .. list(...))
   end
   return ...
end

local function real_of_all(count, first, ...)
   if count == 0 then
      return
   end
   return real(first), real_of_all(count - 1, ...)
end

local function called(path, call)
   return function(...)
      note("call", path .. "(" .. list(...) .. ")")
      return results(path, call(real_of_all(select("#", ...), ...)))
   end
end

-- The proxy that a script gets for `value`, which is at `path`.
local function watched(value, path)
   local kind = type(value)
   if kind == "function" then
      return called(path, value)
   end
   if kind ~= "table" then
      return value
   end
   local meta = { __metatable = false }
   function meta.__index(_, key)
      local found = value[key]
      if type(found) ~= "table" and type(found) ~= "function" then
         note("read", path_of(path, key) .. " = " .. shown(found))
      end
      return watched(found, path_of(path, key))
   end
   function meta.__newindex(_, key, given)
      note("write", path_of(path, key) .. " = " .. shown(given))
      value[key] = real(given)
   end
   function meta.__pairs()
      note("read", "all of " .. path)
      return pairs(value)
   end
   function meta.__len()
      return #value
   end
   local proxy = setmetatable({}, meta)
   real_of[proxy] = value
   return proxy
end

local environment = setmetatable({
   lighty = watched(lighty, "lighty"),
   petrel = watched(petrel, "petrel"),
   print = function(...)
      local parts = {}
      for index = 1, select("#", ...) do
         parts[index] = tostring((select(index, ...)))
      end
      note("print", concat(parts, "\t"))
   end,
}, { __index = _G })
environment._G = environment

local chunk, reason = loadfile(script_path, "t", environment)
if chunk == nil then
   note("error", reason)
   error(reason, 0)
end

-- Garbage from before does not count as the script's memory.
collectgarbage("collect")
local clock, memory = os.clock(), collectgarbage("count")

local function ended(ok, ...)
   local time = (os.clock() - clock) * 1000
   local grown = math.max(collectgarbage("count") - memory, 0)
   if ok then
      note("return", select("#", ...) == 0 and "nothing" or list(...))
   else
      local failure = (...)
      note("error", tostring(failure.message))
      for line in failure.stack:gmatch("[^\n]+") do
         if not find(line, "trace.lua", 1, true) then
            note("", line)
         end
      end
   end
   note("took", format("%.2f ms of processor time and %.1f KiB of memory, tracing included", time, grown))
   if not ok then
      error((...).message, 0)
   end
   return ...
end

return ended(xpcall(chunk, function(message)
   return { message = message, stack = debug.traceback("") }
end))
