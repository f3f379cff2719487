-- Library tables that a script can extend, for its own run only.
--
-- All runs of a state share one set of libraries. A script never gets the real table, but an empty proxy for
-- it. Reads go through to the real table, which the JIT compiler resolves. A write makes a `front` table that
-- belongs to the run. The fronts of one run are its overlay. `switch` removes the overlay of one run and puts
-- that of another in place; runs that change nothing have none and cost nothing.

local host = ...
local globals = host.globals
local getmetatable, setmetatable, next, rawset = globals.getmetatable, globals.setmetatable, globals.next, globals.rawset
local type, error, select, sub = globals.type, globals.error, globals.select, globals.string.sub
local overlay_made = host.rust.overlay_made

-- The overlay of the current run: record of a library -> its front.
local current = nil

-- proxy -> record. A key here is a table that a script must not reach by raw access.
local records = {}

-- The metatable of strings is a library, too: `getmetatable("")` returns a proxy of it.
local strings = getmetatable("")

local string_record

-- Fields that the run put into the metatable of strings.
local operators = { placed = {} }

local function install(record, front)
  record.meta.__index = front or record.real
  if record == string_record and not operators.placed.__index then strings.__index = front or record.real end
end

local function install_operators(front)
  for key in next, operators.placed do
    strings[key] = nil
    if key == "__index" then strings.__index = string_record.meta.__index end
  end
  operators.placed = {}
  for key, value in next, front or {} do
    strings[key] = value
    operators.placed[key] = true
  end
end

-- A front falls back to the real library, except for the names that the run has removed.
local function new_front(record)
  local hidden, real = {}, record.real
  local front = setmetatable({}, { __index = real, hidden = hidden })
  return front
end

local function hide(record, front, key)
  local hidden, real = getmetatable(front).hidden, record.real
  hidden[key] = true
  front[key] = nil
  getmetatable(front).__index = function(_, wanted)
    if not hidden[wanted] then return real[wanted] end
  end
end

local function overlay_for_writing()
  if current == nil then
    current = {}
    overlay_made()
  end
  return current
end

local function front_for_writing(record)
  local overlay = overlay_for_writing()
  local front = overlay[record]
  if front == nil then
    front = new_front(record)
    overlay[record] = front
    install(record, front)
  end
  return front
end

local function assign(proxy, key, value)
  local record = records[proxy]
  local front = front_for_writing(record)
  if value == nil then
    hide(record, front, key)
  else
    getmetatable(front).hidden[key] = nil
    rawset(front, key, value)
  end
end

local function enumerate(proxy)
  local record = records[proxy]
  local all = {}
  for key, value in next, record.real do all[key] = value end
  local front = current and current[record]
  if front then
    for key in next, getmetatable(front).hidden do all[key] = nil end
    for key, value in next, front do all[key] = value end
  end
  return next, all, nil
end

-- The proxy of `real`, which only the host may access from now on.
function host.protect(real)
  if records[real] then return real end
  local meta = { __index = real, __newindex = assign, __pairs = enumerate, __metatable = false }
  local proxy = setmetatable({}, meta)
  records[proxy] = { meta = meta, real = real }
  return proxy
end

-- Whether raw access to `value` is forbidden.
host.is_protected = records

-- Forbids raw access to `shared`, whose metatable decides about all other access.
function host.guard(shared)
  records[shared] = records[shared] or { meta = {}, real = shared }
  return shared
end

-- Metamethods of strings that would affect other runs, or undo the protection.
local fixed = { __gc = true, __mode = true, __metatable = true }

-- The result of `getmetatable("")`: `__index` is the library, and changes last as long as the run.
function host.protect_strings(library)
  string_record = records[library]
  local meta = { __metatable = false }
  local proxy = setmetatable({}, meta)
  function meta.__index(_, key)
    if operators.placed[key] then return strings[key] end
    if key == "__index" then return library end
  end
  function meta.__newindex(_, key, value)
    if type(key) ~= "string" or sub(key, 1, 2) ~= "__" or fixed[key] then
      error("this field of the metatable of strings cannot be changed", 2)
    end
    local overlay = overlay_for_writing()
    overlay[operators] = overlay[operators] or {}
    if value == library then value = nil end
    overlay[operators][key] = value
    install_operators(overlay[operators])
  end
  strings.__metatable = proxy
  records[proxy] = { meta = meta, real = {} }
end

-- Puts `overlay` in place and returns the previous one.
function host.switch(overlay)
  local previous = current
  install_operators(nil)
  for record in next, previous or {} do
    if record ~= operators then install(record, nil) end
  end
  for record, front in next, overlay or {} do
    if record ~= operators then install(record, front) end
  end
  if overlay then install_operators(overlay[operators]) end
  current = overlay
  return previous
end

-- What the run is loading, for `module.lua`. It stays visible while a module loads.
local loads = { real = {}, meta = {} }

-- Nil if the run has loaded nothing.
function host.loads()
  return current and current[loads]
end

function host.loads_for_writing()
  local overlay = overlay_for_writing()
  overlay[loads] = overlay[loads] or { threads = {}, own = {}, partial_count = 0 }
  return overlay[loads]
end

-- From here on, changes go into a separate overlay, and the run's changes are hidden, except in the libraries
-- whose proxies are given. Returns what `end_apart` needs.
function host.begin_apart(...)
  local shown
  for index = 1, select("#", ...) do
    local record = records[select(index, ...)]
    if current and current[record] then
      shown = shown or {}
      shown[record] = current[record]
    end
  end
  if current and current[loads] then
    shown = shown or {}
    shown[loads] = current[loads]
  end
  return host.switch(shown)
end

-- Restores what was there before. Returns the separate overlay, or nil if it is empty.
function host.end_apart(before)
  local overlay = host.switch(before)
  if overlay and before then
    for record, front in next, before do
      if overlay[record] == front then overlay[record] = nil end
    end
  end
  if overlay and next(overlay) ~= nil then return overlay end
  return nil
end

-- Adds everything in `overlay` to the overlay of the current run.
function host.adopt(overlay)
  for record, front in next, overlay do
    if record == operators then
      for key, value in next, front do strings.__metatable[key] = value end
    else
      local mine = front_for_writing(record)
      for key in next, getmetatable(front).hidden do hide(record, mine, key) end
      for key, value in next, front do
        getmetatable(mine).hidden[key] = nil
        rawset(mine, key, value)
      end
    end
  end
end

-- A value that lasts as long as the run, such as the file that `io.output` selected.
local slots = { real = {}, meta = {} }
function host.slot(key)
  local front = current and current[slots]
  return front and front[key]
end
function host.set_slot(key, value)
  front_for_writing(slots)[key] = value
end
