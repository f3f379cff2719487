-- Strings: LuaJIT's own functions where their worst case is fast, else Petrel's matcher with a limit.
--
-- `longest[p]` is the length of the longest subject for which LuaJIT's matcher certainly needs few steps with
-- the pattern `p`; Rust computes it once. LuaJIT's functions are called as tail calls, so that an error names
-- the line of the script.

local host = ...
local globals = host.globals
local rust, limits = host.rust, host.limits
local string = globals.string
local find, match, gmatch, gsub = string.find, string.match, string.gmatch, string.gsub
local rep, sub, byte = string.rep, string.sub, string.byte
local type, error, select, tostring, tonumber, next = globals.type, globals.error, globals.select, globals.tostring, globals.tonumber, globals.next
local getmetatable, concat = globals.getmetatable, globals.table.concat
local string_bytes_max, plain_steps_max = limits.string_bytes_max, limits.plain_steps_max
local native_subject_max = rust.native_subject_max
local rust_find, rust_match, rust_gmatch, rust_gsub, rust_find_plain =
  rust.string_find, rust.string_match, rust.string_gmatch, rust.string_gsub, rust.string_find_plain

local longest = {}
local known = 0

-- The number of captures of a pattern, if it is in `longest`.
local captures_of = {}

-- Fills `longest[p]`. If scripts generate too many patterns, it forgets all of them.
local function learn(p)
  if type(p) == "number" then p = tostring(p) end
  if type(p) ~= "string" then return 1 / 0 end
  local bytes = native_subject_max(p)
  if #p <= 256 then
    if known == 1000 then
      for key in next, longest do longest[key], captures_of[key] = nil, nil end
      known = 0
    end
    known = known + 1
    longest[p] = bytes
  end
  return bytes
end

-- Results of Rust: true and values, or false and a message.
local function results(ok, ...)
  if not ok then error((...), 2) end
  return ...
end

-- The position to begin at, for Rust.
local function place(init, name)
  if init == nil or type(init) == "number" then return init end
  return tonumber(init) or error("bad argument #3 to '" .. name .. "' (number expected, got " .. type(init) .. ")", 3)
end

function string.match(s, p, init)
  if type(s) == "string" and #s > (longest[p] or learn(p)) then
    return results(rust_match(s, p, place(init, "match")))
  end
  return match(s, p, init)
end

function string.find(s, p, init, plain)
  if plain then
    if type(s) == "string" and type(p) == "string" and #s * #p > plain_steps_max then
      return rust_find_plain(s, p, place(init, "find"))
    end
    return find(s, p, init, true)
  end
  if type(s) == "string" and #s > (longest[p] or learn(p)) then
    return results(rust_find(s, p, place(init, "find")))
  end
  return find(s, p, init)
end

-- One step of an iteration in Rust: whether it succeeded, where to continue, captures.
local function matched(state, ok, position, ...)
  if not ok then
    state.position = nil
    error(position, 2)
  end
  state.position = position
  return ...
end

-- `^` is an ordinary byte here, so what is known about the anchored pattern does not apply.
function string.gmatch(s, p)
  if type(s) == "string" and (#s > (longest[p] or learn(p)) or type(p) == "string" and byte(p) == 94) then
    local state = { position = 1 }
    return function()
      if state.position == nil then return nil end
      return matched(state, rust_gmatch(s, p, state.position))
    end
  end
  return gmatch(s, p)
end

-- `gsub` with a replacement that calls the script: entirely in Lua, so that the script may wait there.

local function count_captures(p)
  local count = rust.capture_count(p)
  if #p <= 256 and longest[p] then captures_of[p] = count end
  return count
end

local function found(ok, ...)
  if not ok then error((gsub(..., "^string%.find", "string.gsub")), 3) end
  return ...
end

local function find_long(s, p, position)
  return found(rust_find(s, p, position))
end

-- A result of the script's function or table.
local function checked(value, level)
  local kind = type(value)
  if kind == "string" then return #value end
  if kind == "number" then return #tostring(value) end
  error("invalid replacement value (a " .. kind .. ")", level)
end

local function too_long(level)
  error("string.gsub: the result is longer than " .. string_bytes_max .. " bytes", level)
end

-- For more captures than `gsub_few` has variables.
local function gsub_many(search, s, p, call, count_max, anchored)
  local parts, used, count, position, copied, bytes = {}, 0, 0, 1, 1, 0
  local function one(first, last, ...)
    if first == nil then return false end
    local piece = call(...) or sub(s, first, last)
    bytes = bytes + (first - copied) + checked(piece, 4)
    if bytes > string_bytes_max then too_long(4) end
    parts[used + 1], parts[used + 2] = sub(s, copied, first - 1), piece
    used, count, copied = used + 2, count + 1, last + 1
    position = last >= first and copied or first + 1
    return true
  end
  while count < count_max and position <= #s + 1 do
    if not one(search(s, p, position)) or anchored then break end
  end
  parts[used + 1] = sub(s, copied)
  return concat(parts), count
end

local function gsub_few(search, s, p, value, count_max, anchored, captures)
  local parts, used, count, position, copied, bytes = {}, 0, 0, 1, 1, 0
  local is_call = type(value) == "function"
  while count < count_max and position <= #s + 1 do
    local first, last, a, b, c = search(s, p, position)
    if first == nil then break end
    if captures == 0 then a = sub(s, first, last) end
    local piece
    if not is_call then
      piece = value[a]
    elseif captures < 2 then
      piece = value(a)
    elseif captures == 2 then
      piece = value(a, b)
    else
      piece = value(a, b, c)
    end
    if not piece then piece = sub(s, first, last) end
    bytes = bytes + (first - copied) + checked(piece, 3)
    if bytes > string_bytes_max then too_long(3) end
    if first > copied then
      used = used + 1
      parts[used] = sub(s, copied, first - 1)
    end
    used = used + 1
    parts[used] = piece
    count, copied = count + 1, last + 1
    position = last >= first and copied or first + 1
    if anchored then break end
  end
  parts[used + 1] = sub(s, copied)
  return concat(parts), count
end

local function gsub_calling(s, p, value, count_max)
  s, p = tostring(s), tostring(p)
  local search = #s > (longest[p] or learn(p)) and find_long or find
  local captures = captures_of[p] or count_captures(p)
  local anchored = byte(p) == 94
  if captures > 3 and type(value) == "function" then
    return gsub_many(search, s, p, value, count_max, anchored)
  end
  return gsub_few(search, s, p, value, count_max, anchored, captures)
end

-- Results of Rust for `gsub_long`.
local function replaced(ok, ...)
  if not ok then error((...), 3) end
  return ...
end

-- A string as the replacement, part by part.
local function gsub_long(s, p, value, count_max)
  local text, count, onwards = replaced(rust_gsub(s, p, value, count_max, 0))
  if onwards == nil then return text, count end
  local parts, used, bytes = { text }, 1, #text
  while onwards do
    local more
    text, more, onwards = replaced(rust_gsub(s, p, value, count_max - count, onwards))
    used, bytes, count = used + 1, bytes + #text, count + more
    parts[used] = text
    if bytes > string_bytes_max then too_long(3) end
  end
  return concat(parts), count
end

local function count_of(limit)
  if limit == nil then return 1 / 0 end
  return tonumber(limit) or error("bad argument #4 to 'gsub' (number expected, got " .. type(limit) .. ")", 3)
end

-- The longest possible result with a string: every byte and the end may match, and every `%n` repeats a part.
local function replaced_bytes_max(s, value)
  return (2 * #s + 1) * #value + #s
end

function string.gsub(s, p, value, ...)
  local kind = type(value)
  if (kind == "string" or kind == "number") and type(s) == "string" then
    if #s > (longest[p] or learn(p)) or replaced_bytes_max(s, tostring(value)) > string_bytes_max then
      return gsub_long(s, p, tostring(value), count_of((...)))
    end
  elseif (kind == "function" or (kind == "table" and getmetatable(value) ~= nil))
    and (type(s) == "string" or type(s) == "number") and (type(p) == "string" or type(p) == "number") then
    return gsub_calling(s, p, value, count_of((...)))
  elseif kind == "table" and type(s) == "string" and #s > (longest[p] or learn(p)) then
    return gsub_calling(s, p, value, count_of((...)))
  end
  return gsub(s, p, value, ...)
end

function string.rep(s, count, separator)
  local text, n = s, tonumber(count)
  if type(text) == "number" then text = tostring(text) end
  if type(text) == "string" and n then
    local each = #text
    if type(separator) == "string" or type(separator) == "number" then each = each + #tostring(separator) end
    if each == 0 then return "" end
    if not (each * n <= string_bytes_max) then
      error("string.rep: the result is longer than " .. string_bytes_max .. " bytes", 2)
    end
  end
  if separator == nil then return rep(s, count) end
  return rep(s, count, separator)
end

-- A __tostring that C's `format` calls could not wait, and each nested one would use some of the C stack,
-- whose overflow would end the process.
local format = string.format

local function is_object(value)
  local kind = type(value)
  return (kind == "table" or kind == "userdata") and getmetatable(value) ~= nil
end

local function has_object(a, b, c, d, ...)
  if is_object(a) or is_object(b) or is_object(c) or is_object(d) then return true end
  return select("#", ...) > 0 and has_object(...)
end

local function format_objects(text, ...)
  local values, count = { ... }, select("#", ...)
  for index = 1, count do
    if is_object(values[index]) then values[index] = tostring(values[index]) end
  end
  return format(text, globals.unpack(values, 1, count))
end

function string.format(text, ...)
  if has_object(...) then return format_objects(text, ...) end
  return format(text, ...)
end

-- Lua 5.3's functions for binary data. Errors are returned as messages.
local function packed(ok, ...)
  if not ok then error((...), 2) end
  return ...
end

function string.pack(...) return packed(rust.string_pack(...)) end
function string.unpack(...) return packed(rust.string_unpack(...)) end
function string.packsize(...) return packed(rust.string_packsize(...)) end

string.gfind = nil
