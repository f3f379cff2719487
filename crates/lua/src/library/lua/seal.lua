-- The last step: removes what is not allowed, and puts proxies in front of everything else.

local host = ...
local globals = host.globals
local options = host.options
local next, type, tonumber = globals.next, globals.type, globals.tonumber
local debug = globals.debug
local fallback_traceback = host.rust.traceback

-- The harmless part of `debug`: texts about the stack, but no functions, no locals, no registry.
local function harmless()
  local shown = {}
  shown.traceback = debug and debug.traceback or fallback_traceback
  local getinfo = debug and debug.getinfo
  if getinfo then
    function shown.getinfo(level)
      level = tonumber(level)
      if level == nil or level < 0 then return nil end
      local info = getinfo(level + 1, "nSl")
      return info
    end
  end
  return shown
end

if not options.debug then globals.debug = harmless() end
if not options.jit then globals.jit = nil end
if not options.ffi then globals.ffi = nil end

local proxies = {}
for _, name in next, { "string", "table", "math", "os", "io", "coroutine", "utf8", "bit", "bit32", "debug", "jit", "ffi" } do
  local real = globals[name]
  if type(real) == "table" then
    proxies[name] = host.protect(real)
    globals[name] = proxies[name]
    host[name] = proxies[name]
  end
end
host.protect_strings(proxies.string)
host.package = host.seal_modules(proxies)
globals.package = host.package

-- A script's `_G` is its own environment; no script gets the real table.
globals._G = nil

return {
  switch = host.switch,
  protect = host.protect,
  guard = host.guard,
  rawget = host.rawget,
  environment = host.environment,
  plain_errors = host.plain_errors,
}
