-- Regular expressions: the parts that call back into the script, so that it may wait there, and errors that
-- name its line. `rust` returns true and results, or false and a message.

local rust = ...
local error, type, select, tostring, tonumber = error, type, select, tostring, tonumber
local sub, concat = string.sub, table.concat
local find, captures, gsub, split = rust.find, rust.captures, rust.gsub, rust.split
local string_bytes_max = rust.string_bytes_max

local regex = {}

local function results(ok, ...)
  if not ok then error((...), 2) end
  return ...
end

-- The groups, or the whole match.
local function matched(s, ok, first, last, ...)
  if not ok then error(first, 2) end
  if first == nil then return nil end
  if select("#", ...) == 0 then return sub(s, first, last) end
  return ...
end

function regex.match(s, re, flags, init)
  return matched(s, find("match", s, re, flags, init))
end

function regex.find(s, re, flags, init)
  return results(find("find", s, re, flags, init))
end

function regex.captures(s, re, flags, init)
  return results(captures("captures", s, re, flags, init))
end

function regex.split(s, re, flags, count)
  return results(split(s, re, flags, count))
end

-- Where the next search begins, and whether an empty match there would repeat the last one.
local function following(position, not_empty, first, last)
  local after = last + 1
  if after > position then return after, last < first end
  if not_empty then return position + 1, false end
  return position, true
end

function regex.gmatch(s, re, flags)
  local position, not_empty = 1, false
  local function step(ok, first, last, ...)
    if not ok then
      position = nil
      error(first, 2)
    end
    if first == nil then
      position = nil
      return nil
    end
    position, not_empty = following(position, not_empty, first, last)
    if select("#", ...) == 0 then return sub(s, first, last) end
    -- If the first group took no part, the loop must not end.
    if ... == nil then return false, select(2, ...) end
    return ...
  end
  return function()
    if position == nil then return nil end
    return step(find("gmatch", s, re, flags, position, not_empty))
  end
end

local function replaced(original, value)
  if not value then return original end
  if type(value) ~= "string" and type(value) ~= "number" then
    error("invalid replacement value (a " .. type(value) .. ")", 4)
  end
  return value
end

local function by_function(call, original, ...)
  if select("#", ...) == 0 then return replaced(original, call(original)) end
  return replaced(original, call(...))
end

local function by_table(values, original, ...)
  local key = original
  if select("#", ...) > 0 then key = ... end
  if key == nil then return original end
  return replaced(original, values[key])
end

local function gsub_calling(s, re, value, flags, count_max)
  s = tostring(s)
  local replace = type(value) == "function" and by_function or by_table
  local parts, used, count, position, copied, bytes, not_empty = {}, 0, 0, 1, 1, 0, false
  local function one(ok, first, last, ...)
    if not ok then error(first, 3) end
    if first == nil then return false end
    local piece = replace(value, sub(s, first, last), ...)
    parts[used + 1] = sub(s, copied, first - 1)
    parts[used + 2] = piece
    used = used + 2
    bytes = bytes + (first - copied) + #tostring(piece)
    if bytes > string_bytes_max then
      error("regex.gsub: the result is longer than " .. string_bytes_max .. " bytes", 3)
    end
    count = count + 1
    position, not_empty = following(position, not_empty, first, last)
    if last + 1 > copied then copied = last + 1 end
    return true
  end
  while count < count_max and one(find("gsub", s, re, flags, position, not_empty)) do end
  parts[used + 1] = sub(s, copied)
  return concat(parts), count
end

function regex.gsub(s, re, value, flags, count)
  local kind = type(value)
  if kind == "string" or kind == "number" then
    return results(gsub(s, re, value, flags, count))
  elseif kind == "function" or kind == "table" then
    return gsub_calling(s, re, value, flags, tonumber(count) or 1 / 0)
  end
  error("bad argument #3 to 'gsub' (string, function or table expected, got " .. kind .. ")", 2)
end

return regex
