-- Errors of functions written in Rust become plain strings with the script's line, like those of Lua.

local host = ...
local globals = host.globals
local pcall, error, type, next, rawset = globals.pcall, globals.error, globals.type, globals.next, globals.rawset
local words_of = host.rust.words_of

local function settled(ok, ...)
  if ok then return ... end
  local words = words_of(...)
  if words == nil then error(..., 0) end
  error(words, 2)
end

-- Replaces the functions in `library`.
function host.plain_errors(library)
  for key, value in next, library do
    if type(value) == "function" then
      rawset(library, key, function(...) return settled(pcall(value, ...)) end)
    end
  end
  return library
end
