-- Lua 5.3's functions for UTF-8 (RFC 3629). `lax` accepts what Lua 5.4 accepts: up to 2^31.

local host = ...
local globals = host.globals
local type, error, select, tonumber = globals.type, globals.error, globals.select, globals.tonumber
local byte, char, concat, floor = globals.string.byte, globals.string.char, globals.table.concat, globals.math.floor

local utf8 = { charpattern = "[%z\1-\127\194-\253][\128-\191]*" }
globals.utf8 = utf8

local smallest = { 0, 0x80, 0x800, 0x10000, 0x200000, 0x4000000 }

-- The code point that begins at `index` and where the next one begins; nil if it is not UTF-8.
local function decode(s, index, lax)
  local first = byte(s, index)
  if first == nil then return nil end
  if first < 0x80 then return first, index + 1 end
  if first < 0xC2 or first > 0xFD then return nil end
  local count, code
  if first < 0xE0 then count, code = 1, first - 0xC0
  elseif first < 0xF0 then count, code = 2, first - 0xE0
  elseif first < 0xF8 then count, code = 3, first - 0xF0
  elseif first < 0xFC then count, code = 4, first - 0xF8
  else count, code = 5, first - 0xFC end
  for offset = 1, count do
    local next_byte = byte(s, index + offset)
    if next_byte == nil or next_byte < 0x80 or next_byte > 0xBF then return nil end
    code = code * 64 + (next_byte - 0x80)
  end
  if code < smallest[count + 1] then return nil end
  if not lax and (code > 0x10FFFF or (code >= 0xD800 and code <= 0xDFFF)) then return nil end
  return code, index + count + 1
end

local function encode(code)
  if code < 0x80 then return char(code) end
  if code < 0x800 then return char(0xC0 + floor(code / 64), 0x80 + code % 64) end
  local tail = char(0x80 + code % 64)
  code = floor(code / 64)
  local room = 0x20
  while code >= room do
    tail = char(0x80 + code % 64) .. tail
    code = floor(code / 64)
    room = room / 2
  end
  return char(256 - 2 * room + code) .. tail
end

local function check_string(s, name)
  if type(s) == "number" then return s .. "" end
  if type(s) ~= "string" then
    error("bad argument #1 to '" .. name .. "' (string expected, got " .. type(s) .. ")", 3)
  end
  return s
end

local function position(value, default, length)
  value = tonumber(value == nil and default or value) or default
  if value < 0 then return value < -length and 0 or length + value + 1 end
  return value
end

function utf8.char(...)
  local parts = { ... }
  for index = 1, select("#", ...) do
    local code = tonumber(parts[index])
    if code == nil or code < 0 or code > 0x7FFFFFFF or code ~= floor(code) then
      error("bad argument #" .. index .. " to 'char' (value out of range)", 2)
    end
    parts[index] = encode(code)
  end
  return concat(parts)
end

function utf8.codepoint(s, i, j, lax)
  s = check_string(s, "codepoint")
  local first = position(i, 1, #s)
  local last = position(j, first, #s)
  if first < 1 then error("bad argument #2 to 'codepoint' (out of bounds)", 2) end
  if last > #s then error("bad argument #3 to 'codepoint' (out of bounds)", 2) end
  local codes, count = {}, 0
  while first <= last do
    local code, after = decode(s, first, lax)
    if code == nil then error("invalid UTF-8 code", 2) end
    count = count + 1
    codes[count] = code
    first = after
  end
  return globals.unpack(codes, 1, count)
end

function utf8.len(s, i, j, lax)
  s = check_string(s, "len")
  local first = position(i, 1, #s)
  local last = position(j, -1, #s)
  if first < 1 or first > #s + 1 then error("bad argument #2 to 'len' (initial position out of bounds)", 2) end
  if last > #s then error("bad argument #3 to 'len' (final position out of bounds)", 2) end
  local count = 0
  while first <= last do
    local code, after = decode(s, first, lax)
    if code == nil then return nil, first end
    count = count + 1
    first = after
  end
  return count
end

local function continues(s, index)
  local value = byte(s, index)
  return value ~= nil and value >= 0x80 and value <= 0xBF
end

function utf8.offset(s, n, i)
  s = check_string(s, "offset")
  n = tonumber(n)
  if n == nil then error("bad argument #2 to 'offset' (number expected)", 2) end
  local index = position(i, n > 0 and 1 or #s + 1, #s)
  if index < 1 or index > #s + 1 then error("bad argument #3 to 'offset' (position out of bounds)", 2) end
  if n == 0 then
    while index > 1 and continues(s, index) do index = index - 1 end
    return index
  end
  if continues(s, index) then error("initial position is a continuation byte", 2) end
  while n < 0 and index > 1 do
    repeat index = index - 1 until index <= 1 or not continues(s, index)
    n = n + 1
  end
  if n < 0 then return nil end
  while n > 1 and index <= #s do
    repeat index = index + 1 until not continues(s, index)
    n = n - 1
  end
  if n > 1 then return nil end
  return index
end

function utf8.codes(s, lax)
  s = check_string(s, "codes")
  return function(_, index)
    index = index + 1
    while index > 1 and continues(s, index) do index = index + 1 end
    if index > #s then return nil end
    local code, after = decode(s, index, lax)
    if code == nil or continues(s, after) then error("invalid UTF-8 code", 2) end
    return index, code
  end, s, 0
end
