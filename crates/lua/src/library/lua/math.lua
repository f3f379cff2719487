-- Functions on numbers that later Lua versions added. All numbers are doubles, so an "integer" is a number
-- without a fraction whose neighbours are exact, too: up to 2^53 in both directions.

local host = ...
local globals = host.globals
local math = globals.math
local type, error, tonumber = globals.type, globals.error, globals.tonumber
local floor, random, randomseed, huge, fmod = math.floor, math.random, math.randomseed, math.huge, math.fmod
local random_seed = host.rust.random_seed

math.maxinteger = 2 ^ 53 - 1
math.mininteger = -(2 ^ 53 - 1)
local largest = math.maxinteger

local function is_integer(value)
  return value == floor(value) and value <= largest and value >= -largest
end

function math.type(value)
  if type(value) ~= "number" then return nil end
  return is_integer(value) and "integer" or "float"
end

function math.tointeger(value)
  if type(value) == "string" then value = tonumber(value) end
  if type(value) == "number" and is_integer(value) then return value end
  return nil
end

-- Compares as unsigned integers: a negative number counts as larger than all others.
function math.ult(a, b)
  if type(a) ~= "number" or type(b) ~= "number" then
    error("bad argument to 'ult' (number expected)", 2)
  end
  if (a < 0) ~= (b < 0) then return b < 0 end
  return a < b
end

function math.fmod(a, b)
  if b == 0 and type(a) == "number" and is_integer(a) then
    error("bad argument #2 to 'fmod' (zero)", 2)
  end
  return fmod(a, b)
end

-- One generator serves all runs, and starts differently in every state. A script that calls `randomseed` gets
-- a generator of its own (xorshift, 32 bits at a time), so that no script makes another one's numbers
-- predictable.
randomseed(random_seed())

local bit = globals.bit
local bxor, lshift, rshift, tobit = bit.bxor, bit.lshift, bit.rshift, bit.tobit

local function generator(seed)
  local state = tobit(bxor(floor(seed) % 4294967296, 0x2545F491))
  if state == 0 then state = 1 end
  return function()
    state = bxor(state, lshift(state, 13))
    state = bxor(state, rshift(state, 17))
    state = bxor(state, lshift(state, 5))
    return (state % 4294967296) / 4294967296
  end
end

local function seeded_random(seed)
  local draw = generator(seed)
  for _ = 1, 8 do draw() end
  return function(low, high)
    if low == nil then return draw() end
    if high == nil then low, high = 1, low end
    low, high = tonumber(low), tonumber(high)
    if not (low and high) then error("bad argument to 'random' (number expected)", 2) end
    if low > high then error("bad argument to 'random' (interval is empty)", 2) end
    return floor(low + draw() * (floor(high) - floor(low) + 1))
  end
end

function math.randomseed(seed)
  seed = tonumber(seed == nil and random_seed() or seed)
  if seed == nil then error("bad argument #1 to 'randomseed' (number expected)", 2) end
  if seed ~= seed or seed == huge or seed == -huge then seed = 0 end
  host.math.random = seeded_random(seed)
end
