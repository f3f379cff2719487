-- `require`, `module` and `package`: modules in Lua, loaded once per state.
--
-- A module runs with globals of its own. What it leaves there, and what it adds to libraries while it
-- loads, is handed to each run that requires it, so that modules of the older style (functions
-- defined as globals) work without touching runs that did not ask for them.

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

-- Modules of files: `package.path` -> name -> { value =, exports =, overlay = }. The same name may be another
-- file for another site. `package.loaded` shows the values of those of the run's path.
local homes, homes_count, homes_max = {}, 0, 256
-- name -> the thread that is loading it.
local loading = {}
local loaded, preload = {}, {}

-- The modules of the path of the run that executes.
local function home()
  local path = host.package.path
  if type(path) ~= "string" then return {} end
  local modules = homes[path]
  if modules == nil then
    -- Paths that scripts make up, of what clients send perhaps.
    if homes_count == homes_max then homes, homes_count = {}, 0 end
    modules, homes_count = {}, homes_count + 1
    homes[path] = modules
  end
  return modules
end

setmetatable(loaded, {
  __index = function(_, name)
    local module = home()[name]
    return module and module.value
  end,
})

local native_loaded, native_preload = package.loaded, package.preload

package.loaded, package.preload = nil, nil
package.loadlib, package.loaders, package.searchers = nil, nil, nil
package.cpath = ""

-- What LuaJIT has ready for `require`, by the option that lets it through.
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

-- Where `name` is found among the templates of `path`, or nil and what was tried.
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

-- Runs a module once, apart from what the run has changed (but for where modules are found), and notes
-- what it leaves behind.
local function run_module(modules, name, chunk, env)
  local before = begin_apart(host.package, package.loaded, package.preload)
  loading[name] = running() or true
  loading_environments[env] = true
  local ok, value = pcall(chunk, name)
  loading[name] = nil
  if ok and value == nil then value = host.package.loaded[name] end
  local overlay = end_apart(before)
  local known = modules[name]
  loading_environments[env] = nil
  if known and known.is_partial then
    loading_environments[known.value] = nil
    known, modules[name] = nil, nil
  end
  if not ok then error(value, 0) end
  if known then return known end
  if value == nil then value = true end
  local module = { value = value, exports = exports_of(env), overlay = overlay }
  modules[name] = module
  return module
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

local function load_file(modules, name, path)
  local env = environment()
  shared[env] = true
  local chunk, message = compile_file(path, nil, env)
  if chunk == nil then
    error("error loading module '" .. name .. "' from file '" .. path .. "':\n\t" .. message, 3)
  end
  return run_module(modules, name, chunk, env)
end

function globals.require(name)
  if type(name) ~= "string" then
    error("bad argument #1 to 'require' (string expected, got " .. type(name) .. ")", 2)
  end
  local package = host.package
  local value, modules = package.loaded[name], home()
  local module = modules[name]
  if value ~= nil then
    if module and module.value == value then hand_over(module) end
    return value
  end
  if loading[name] ~= nil and loading[name] == (running() or true) then
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
  local path = package.path
  if type(path) ~= "string" then error("'package.path' must be a string", 2) end
  local found, tried = search(name, path)
  if found == nil then
    error("module '" .. name .. "' not found:\n\tno field package.preload['" .. name .. "']" .. tried, 2)
  end
  -- Forgotten by this run (`package.loaded[name] = nil`): its own copy, for nobody else.
  local module_before = modules[name]
  modules[name] = nil
  local ok, made = pcall(load_file, modules, name, found)
  if module_before then modules[name] = module_before end
  if not ok then error(made, 0) end
  if module_before then package.loaded[name] = made.value end
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
  local table = loaded[name]
  if type(table) ~= "table" or host.is_protected[table] then table = {} end
  table._M, table._NAME, table._PACKAGE = table, name, (gsub(name, "[^.]*$", ""))
  if loading[name] then
    home()[name] = { value = table, is_partial = true }
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

-- Lets a module of that style see the libraries.
function package.seeall(table)
  if type(table) ~= "table" or host.is_protected[table] then error("'seeall' needs a table", 2) end
  setmetatable(table, environment_meta)
end
