-- Lua 5.2's `bit32` with unsigned results, implemented by LuaJIT's `bit`, whose results are signed.

local host = ...
local globals = host.globals
local error = globals.error
local bit = globals.bit
local band, bor, bxor, bnot, rol, ror = bit.band, bit.bor, bit.bxor, bit.bnot, bit.rol, bit.ror
local lshift, rshift, arshift = bit.lshift, bit.rshift, bit.arshift

local bit32 = {}
globals.bit32 = bit32

-- Numbers wrap around at 2^32, as in Lua 5.2.
local function word(x) return x % 4294967296 end

function bit32.band(...) return word(band(-1, ...)) end
function bit32.bor(...) return word(bor(0, ...)) end
function bit32.bxor(...) return word(bxor(0, ...)) end
function bit32.bnot(x) return word(bnot(word(x))) end
function bit32.btest(...) return band(-1, ...) ~= 0 end
function bit32.lrotate(x, n) return word(rol(word(x), n % 32)) end
function bit32.rrotate(x, n) return word(ror(word(x), n % 32)) end

function bit32.lshift(x, n)
  if n < 0 then return bit32.rshift(x, -n) end
  return n > 31 and 0 or word(lshift(word(x), n))
end

function bit32.rshift(x, n)
  if n < 0 then return bit32.lshift(x, -n) end
  return n > 31 and 0 or word(rshift(word(x), n))
end

function bit32.arshift(x, n)
  if n < 0 then return bit32.lshift(x, -n) end
  return word(arshift(word(x), n > 31 and 31 or n))
end

local function mask_of(field, width)
  width = width or 1
  if field < 0 then error("bad argument #2 (field cannot be negative)", 3) end
  if width < 1 then error("bad argument #3 (width must be positive)", 3) end
  if field + width > 32 then error("trying to access non-existent bits", 3) end
  return 2 ^ width - 1
end

function bit32.extract(x, field, width)
  local mask = mask_of(field, width)
  return word(band(rshift(word(x), field), mask))
end

function bit32.replace(x, value, field, width)
  local mask = mask_of(field, width)
  local cleared = band(word(x), bnot(lshift(mask, field)))
  return word(bor(cleared, lshift(band(value, mask), field)))
end
