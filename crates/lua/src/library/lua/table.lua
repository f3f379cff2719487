-- Tables: long work is done in Lua, where a budget can stop it, and a comparison may wait.

local host = ...
local globals = host.globals
local table = globals.table
local concat, insert = table.concat, table.insert
local type, error, rawget, select, unpack, tonumber = globals.type, globals.error, globals.rawget, globals.select, globals.unpack, globals.tonumber
local is_protected = host.is_protected
local string_bytes_max = host.limits.string_bytes_max
local preload = globals.package.preload

table.pack = table.pack or function(...) return { n = select("#", ...), ... } end
table.unpack = unpack

-- LuaJIT provides these two as modules; both are harmless.
local new, clear = preload["table.new"]("table.new"), preload["table.clear"]("table.clear")

-- A table's room is allocated at once, so its limit is that of texts: 8 bytes per element, up to 48 per key.
function table.new(elements, keys)
  local array, hash = tonumber(elements), tonumber(keys)
  if array and hash and not (array * 8 + hash * 48 <= string_bytes_max) then
    error("table.new: the table takes more than " .. string_bytes_max .. " bytes", 2)
  end
  return new(elements, keys)
end

function table.clear(t)
  if is_protected[t] then error("'clear' cannot change a library", 2) end
  return clear(t)
end

-- An insert into a library's real table would affect all runs: see overlay.lua. A position below 1, which
-- numbers become that do not fit into 32 bits, would take two thousand million steps in C.
function table.insert(t, ...)
  if is_protected[t] then error("'insert' cannot change a library", 2) end
  if select("#", ...) == 2 then
    local position = tonumber((...))
    if position and not (position >= 1 and position < 2147483648) then
      error("bad argument #2 to 'insert' (position out of bounds)", 2)
    end
  end
  return insert(t, ...)
end

-- The longest piece for LuaJIT's own concatenation, so that the budget is checked between two of them.
local run_max = 16384

local function concat_long(t, separator, first, last)
  local pieces, count = {}, 0
  for start = first, last, run_max do
    local stop = start + run_max - 1
    count = count + 1
    pieces[count] = concat(t, separator, start, stop < last and stop or last)
  end
  return concat(pieces, separator)
end

function table.concat(t, separator, first, last)
  if type(t) ~= "table" or (separator ~= nil and type(separator) ~= "string" and type(separator) ~= "number") then
    return concat(t, separator, first, last)
  end
  first, last = tonumber(first or 1), tonumber(last or #t)
  if first == nil or last == nil then
    error("bad argument to 'concat' (number expected)", 2)
  end
  local between = separator and #(separator .. "") or 0
  local bytes = 0
  for index = first, last do
    local value = rawget(t, index)
    local kind = type(value)
    if kind == "string" then
      bytes = bytes + #value + between
    elseif kind == "number" then
      bytes = bytes + between + 8
    else
      error("invalid value (" .. kind .. ") at index " .. index .. " in table for 'concat'", 2)
    end
    if bytes > string_bytes_max then
      error("table.concat: the result is longer than " .. string_bytes_max .. " bytes", 2)
    end
  end
  if last - first >= run_max then return concat_long(t, separator, first, last) end
  return concat(t, separator, first, last)
end

-- Sorting: a bottom-up merge sort. It takes the same number of steps even if a comparison is inconsistent,
-- keeps equal elements in order, and changes the table only when all comparisons are done.

local short = 8

local function sort_short(from, first, last, less)
  for index = first + 1, last do
    local value, hole = from[index], index
    while hole > first and less(value, from[hole - 1]) do
      from[hole] = from[hole - 1]
      hole = hole - 1
    end
    from[hole] = value
  end
end

local function merge(from, into, first, middle, last, less)
  local left, right, target = first, middle + 1, first
  while left <= middle and right <= last do
    if less(from[right], from[left]) then
      into[target] = from[right]
      right = right + 1
    else
      into[target] = from[left]
      left = left + 1
    end
    target = target + 1
  end
  while left <= middle do
    into[target] = from[left]
    left, target = left + 1, target + 1
  end
  while right <= last do
    into[target] = from[right]
    right, target = right + 1, target + 1
  end
end

local function sorted(from, count, less)
  for first = 1, count, short do
    local last = first + short - 1
    sort_short(from, first, last < count and last or count, less)
  end
  local into, width = {}, short
  while width < count do
    for first = 1, count, 2 * width do
      local middle, last = first + width - 1, first + 2 * width - 1
      if middle > count then middle = count end
      if last > count then last = count end
      merge(from, into, first, middle, last, less)
    end
    from, into = into, from
    width = 2 * width
  end
  return from
end

local function ascending(a, b) return a < b end

function table.sort(t, less)
  if type(t) ~= "table" then
    error("bad argument #1 to 'sort' (table expected, got " .. type(t) .. ")", 2)
  end
  if less == nil then
    less = ascending
  elseif type(less) ~= "function" then
    error("bad argument #2 to 'sort' (function expected, got " .. type(less) .. ")", 2)
  end
  local count, copy = #t, {}
  for index = 1, count do copy[index] = t[index] end
  copy = sorted(copy, count, less)
  for index = 1, count do t[index] = copy[index] end
end

-- As in Lua 5.3, honours metamethods, and copies backwards if the ranges overlap.
function table.move(from, first, last, to, into)
  if type(from) ~= "table" or (into ~= nil and type(into) ~= "table") then
    error("bad argument to 'move' (table expected)", 2)
  end
  first, last, to = tonumber(first), tonumber(last), tonumber(to)
  if not (first and last and to) then error("bad argument to 'move' (number expected)", 2) end
  into = into or from
  if to > last or to <= first or into ~= from then
    for offset = 0, last - first do into[to + offset] = from[first + offset] end
  else
    for offset = last - first, 0, -1 do into[to + offset] = from[first + offset] end
  end
  return into
end
