-- petrel.fragment(key, ttl, make): the fragment stored under the key, or what make() returns, for ttl seconds.
local native = ...
local fresh, take, finish, fail = native.fresh, native.take, native.finish, native.fail
local type, pcall, error, tostring = type, pcall, error, tostring

return function(key, ttl, make)
   if type(key) ~= "string" or key == "" then
      error("bad argument #1 to 'fragment' (a key expected)", 2)
   end
   if type(ttl) ~= "number" or not (ttl >= 0) then
      error("bad argument #2 to 'fragment' (seconds expected)", 2)
   end
   if type(make) ~= "function" then
      error("bad argument #3 to 'fragment' (function expected, got " .. type(make) .. ")", 2)
   end
   local found = ttl > 0 and fresh(key)
   if found then
      return found
   end
   local ticket
   found, ticket = take(key, ttl)
   if found then
      return found
   end
   local ok, made = pcall(make)
   if ok and type(made) == "string" then
      finish(ticket, made)
      return made
   end
   local reason = ok and "the function returned a " .. type(made) or tostring(made)
   found = fail(ticket, key, reason)
   if found then
      return found
   end
   if ok then
      error("fragment: " .. reason, 2)
   end
   error(made, 0)
end
