-- `require`, `module` and `package`: modules in Lua, loaded once per state.
--
-- A module runs with globals of its own. The globals that it sets, and what it adds to libraries while it
-- loads, are given to each run that requires it. So modules of the older style (functions defined as globals)
-- work without affecting runs that did not require them.

local host = ...
local globals = host.globals
local package = globals.package
local type, error, next, select = globals.type, globals.error, globals.next, globals.select
local rawget, rawset, setmetatable, pcall = globals.rawget, globals.rawset, globals.setmetatable, globals.pcall
local setfenv, getfenv = host.setfenv, host.getfenv
local gsub, gmatch, concat = globals.string.gsub, globals.string.gmatch, globals.table.concat
local running = globals.coroutine.running
local begin_apart, end_apart, adopt = host.begin_apart, host.end_apart, host.adopt
local environment, environment_meta, shared = host.environment, host.environment_meta, host.shared_environments
local loading_environments = host.loading_environments
local script_environment, compile_file = host.script_environment, host.compile_file

-- Modules from files: `package.path` -> name -> { value =, exports =, overlay = }. The same name may be
-- another file for another site. `package.loaded` shows the values for the run's path.
local homes, homes_count, homes_max = {}, 0, 256
local loaded, preload = {}, {}

-- While a module loads, its run may wait for files and other runs continue. `host.loads()` belongs to one
-- run:
--
--   threads: name -> the coroutine that loads it.
--   own: name -> a module that other runs do not see yet. Either `module` has made its table and it still
--     loads (`is_partial`), or it is complete and may refer to the table of such a module.
--   partial_count: how many of `own` still load.

-- The modules for the path of the current run.
local function home()
  local path = host.package.path
  if type(path) ~= "string" then return {} end
  local modules = homes[path]
  if modules == nil then
    -- Scripts could generate endless paths, perhaps from what clients send.
    if homes_count == homes_max then homes, homes_count = {}, 0 end
    modules, homes_count = {}, homes_count + 1
    homes[path] = modules
  end
  return modules
end

-- The module as the current run sees it.
local function module_of(name)
  local loads = host.loads()
  return loads and loads.own[name] or home()[name]
end

setmetatable(loaded, {
  __index = function(_, name)
    local module = module_of(name)
    return module and module.value
  end,
})

local native_loaded, native_preload = package.loaded, package.preload

package.loaded, package.preload = nil, nil
package.loadlib, package.loaders, package.searchers = nil, nil, nil
package.cpath = ""

-- LuaJIT's own modules for `require`, by the option that allows them.
local ready = {
  ffi = { "ffi", "string.buffer" },
  jit = { "jit", "jit.opt", "jit.util", "jit.profile" },
}

-- Called when the libraries have their proxies.
function host.seal_modules(proxies)
  for name, proxy in next, proxies do loaded[name] = proxy end
  for _, name in next, { "new", "clear" } do
    local member = globals.table[name]
    preload["table." .. name] = function() return member end
  end
  for option, names in next, ready do
    for _, name in next, host.options[option] and names or {} do
      loaded[name] = rawget(loaded, name) or native_loaded[name]
      preload[name] = native_preload[name]
    end
  end
  package.loaded, package.preload = host.protect(loaded), host.protect(preload)
  loaded.package = host.protect(package)
  return loaded.package
end

-- Where `name` is found through the templates of `path`, or nil and the tried names.
local function search(name, path)
  local tried, count = {}, 0
  local file_name = gsub(name, "%.", "/")
  for template in gmatch(path, "[^;]+") do
    local candidate = gsub(template, "%?", (gsub(file_name, "%%", "%%%%")))
    local file = host.open_file(candidate, "rb")
    if file then
      file:close()
      return candidate
    end
    count = count + 1
    tried[count] = "\n\tno file '" .. candidate .. "'"
  end
  return nil, concat(tried)
end

function package.searchpath(name, path, separator, replacement)
  if type(name) ~= "string" or type(path) ~= "string" then
    error("'searchpath' needs a name and a path", 2)
  end
  if separator and separator ~= "." and separator ~= "" then
    local escaped = gsub(separator, "%p", "%%%0")
    name = gsub(name, escaped, (gsub(replacement or "/", "%%", "%%%%")))
  end
  local found, tried = search(name, path)
  if found == nil then return nil, tried end
  return found
end

-- The globals that a module has set, or nil.
local function exports_of(env)
  local exports
  for key, value in next, env do
    if key ~= "_G" then
      exports = exports or {}
      exports[key] = value
    end
  end
  return exports
end

-- Makes complete modules visible to other runs. If another run was faster, its module stays.
local function publish(loads)
  for name, module in next, loads.own do
    module.home[name] = module.home[name] or module
  end
  loads.own = {}
end

-- Runs a module once, without the run's changes (except to where modules are found), and stores what it has
-- set. An `is_private` module is for this run alone.
local function run_module(modules, name, chunk, env, is_private)
  local loads = host.loads_for_writing()
  local before = begin_apart(host.package, package.loaded, package.preload)
  loads.threads[name] = running() or true
  loading_environments[env] = true
  local ok, value = pcall(chunk, name)
  loads.threads[name] = nil
  if ok and value == nil then value = host.package.loaded[name] end
  local overlay = end_apart(before)
  loading_environments[env] = nil
  local own = loads.own[name]
  if own and own.is_partial then
    loading_environments[own.value] = nil
    loads.own[name], loads.partial_count = nil, loads.partial_count - 1
  end
  if not ok then
    -- Modules that were complete before may refer to the table of the one that failed.
    for other, module in next, loads.own do
      if not module.is_partial then loads.own[other] = nil end
    end
    error(value, 0)
  end
  local known = not is_private and modules[name]
  if not known then
    if value == nil then value = true end
    known = { value = value, exports = exports_of(env), overlay = overlay, home = modules }
    if not is_private then loads.own[name] = known end
  end
  if loads.partial_count == 0 then publish(loads) end
  return known
end

-- Gives the run the globals and the library functions that a module defines.
local function hand_over(module)
  if module.exports then
    local env = script_environment()
    for key, value in next, module.exports do
      if rawget(env, key) == nil then rawset(env, key, value) end
    end
  end
  if module.overlay then adopt(module.overlay) end
end

local function load_file(modules, name, path, is_private)
  local env = environment()
  shared[env] = true
  local chunk, message = compile_file(path, nil, env)
  if chunk == nil then
    error("error loading module '" .. name .. "' from file '" .. path .. "':\n\t" .. message, 3)
  end
  -- Another run may have loaded it while this one waited for the file.
  local known = not is_private and modules[name]
  return known or run_module(modules, name, chunk, env, is_private)
end

function globals.require(name)
  if type(name) ~= "string" then
    error("bad argument #1 to 'require' (string expected, got " .. type(name) .. ")", 2)
  end
  local package = host.package
  local value, module = package.loaded[name], module_of(name)
  if value ~= nil then
    if module and module.value == value then hand_over(module) end
    return value
  end
  local loads = host.loads()
  if loads and loads.threads[name] == (running() or true) then
    error("loop or previous error loading module '" .. name .. "'", 2)
  end
  local maker = package.preload[name]
  if maker ~= nil then
    value = maker(name)
    if value == nil then value = package.loaded[name] end
    if value == nil then value = true end
    package.loaded[name] = value
    return value
  end
  local path, modules = package.path, home()
  if type(path) ~= "string" then error("'package.path' must be a string", 2) end
  local found, tried = search(name, path)
  if found == nil then
    error("module '" .. name .. "' not found:\n\tno field package.preload['" .. name .. "']" .. tried, 2)
  end
  -- This run has forgotten the module (`package.loaded[name] = nil`), so it gets a copy of its own.
  local is_private = module ~= nil
  local made = load_file(modules, name, found, is_private)
  if is_private then package.loaded[name] = made.value end
  hand_over(made)
  return made.value
end

-- Lua 5.1's `module`: the rest of the chunk defines members of a table.
function globals.module(name, ...)
  if type(name) ~= "string" then
    error("bad argument #1 to 'module' (string expected, got " .. type(name) .. ")", 2)
  end
  local ok, env = pcall(getfenv, 3)
  if not ok or env == globals then error("'module' must be called by a chunk", 2) end
  local loads = host.loads()
  local is_loading = loads and loads.threads[name] ~= nil
  local own = is_loading and loads.own[name]
  -- A module that loads does not take the table of the same module that another run has loaded.
  local table = own and own.value
  if is_loading then table = table or rawget(loaded, name) else table = loaded[name] end
  if type(table) ~= "table" or host.is_protected[table] then table = {} end
  table._M, table._NAME, table._PACKAGE = table, name, (gsub(name, "[^.]*$", ""))
  if is_loading then
    if not (own and own.is_partial) then loads.partial_count = loads.partial_count + 1 end
    loads.own[name] = { value = table, is_partial = true }
    loading_environments[table] = true
  end
  rawset(env, (gsub(name, "^.*%.", "")), table)
  for index = 1, select("#", ...) do
    local option = select(index, ...)
    option(table)
  end
  shared[table] = true
  setfenv(2, table)
end

-- `package.seeall`: lets a module of that style see the libraries.
function package.seeall(table)
  if type(table) ~= "table" or host.is_protected[table] then error("'seeall' needs a table", 2) end
  setmetatable(table, environment_meta)
end
