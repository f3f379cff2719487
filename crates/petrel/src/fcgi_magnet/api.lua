-- What scripts of `petrel fcgi-magnet` have in addition to the libraries.
--
-- The functions are in the globals of the state, so that modules see them, too. The tables about the request
-- are made in the script's own environment when the script first asks for one.
local globals, rust, protect = ...
local select, type, tostring, error = select, type, tostring, error
local rawset, rawget, setmetatable, pairs = rawset, rawget, setmetatable, pairs
local gsub, lower, upper, find = string.gsub, string.lower, string.upper, string.find
local may_wait = coroutine.isyieldable
local append, drained = rust.append, rust.drained

local function put(text)
   if type(text) ~= "string" then
      text = tostring(text)
   end
   if append(text) and may_wait() then
      drained()
   end
end

-- Appends its arguments to the response, with nothing in between.
local function print(...)
   local count = select("#", ...)
   if count == 1 then
      return put((...))
   end
   for index = 1, count do
      put((select(index, ...)))
   end
end
globals.print, globals.write = print, print

-- `io.write` writes to the response as well, not to the standard output of the program.
local io = {}
for name, value in pairs(globals.io) do
   io[name] = value
end
function io.write(...)
   print(...)
   return true
end
globals.io = protect(io)

-- Sends what was printed so far. After that the head cannot be changed any more.
function globals.flush()
   rust.flush()
   if may_wait() then
      drained()
   end
end

function globals.header(name, value)
   if type(name) ~= "string" then
      error("bad argument #1 to 'header' (string expected, got " .. type(name) .. ")", 2)
   end
   if value ~= nil and type(value) ~= "string" and type(value) ~= "number" then
      error("bad argument #2 to 'header' (string expected, got " .. type(value) .. ")", 2)
   end
   local refused = rust.header(name, value)
   if refused then
      error(refused, 2)
   end
end

function globals.status(number)
   if type(number) ~= "number" then
      error("bad argument #1 to 'status' (number expected, got " .. type(number) .. ")", 2)
   end
   local refused = rust.status(number)
   if refused then
      error(refused, 2)
   end
end

-- Writes a line to the log of the web server.
function globals.log(...)
   local line = ""
   for index = 1, select("#", ...) do
      line = line .. (index > 1 and "\t" or "") .. tostring((select(index, ...)))
   end
   rust.log(line)
end

-- The body of the request; nil and a reason if it is too long.
function globals.read_body()
   local body, reason = rust.body()
   if body == nil and reason == nil then
      body, reason = rust.rest_of_body()
   end
   if body == nil then
      return nil, reason
   end
   return body
end

-- `request["content-type"]` is the same as `request["Content-Type"]`.
local function canonical(name)
   name = gsub(lower(name), "^%l", upper)
   return (gsub(name, "%-%l", upper))
end

local any_case = { __metatable = false }
function any_case.__index(fields, name)
   if type(name) == "string" then
      return rawget(fields, canonical(name))
   end
end

local makers = { env = rust.env, get = rust.get, cookie = rust.cookie }

function makers.request()
   local fields = {}
   local given = rust.request()
   for index = 1, #given, 2 do
      fields[canonical(given[index])] = given[index + 1]
   end
   return setmetatable(fields, any_case)
end

function makers.post()
   local kind = rust.env().CONTENT_TYPE
   if kind == nil or not find(lower(kind), "^application/x%-www%-form%-urlencoded%s*%f[;%z]") then
      return {}
   end
   local body, reason = globals.read_body()
   if body == nil then
      error(reason, 3)
   end
   return rust.form(body)
end

local meta = { __metatable = false }
function meta.__index(environment, name)
   local value = globals[name]
   if value ~= nil then
      return value
   end
   local make = makers[name]
   if make == nil then
      return nil
   end
   value = make()
   rawset(environment, name, value)
   return value
end

-- Makes the empty environment of a script.
return function()
   local environment = setmetatable({}, meta)
   environment._G = environment
   return environment
end
