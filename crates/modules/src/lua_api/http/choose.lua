-- petrel.http(url or table): a path is requested from this server, a URL from another one.
local here, elsewhere = ...
local byte, type = string.byte, type

return function(asked)
   local url = asked
   if type(asked) == "table" then
      url = asked.url
   end
   if type(url) == "string" and byte(url) == 47 then
      return here(asked)
   end
   return elsewhere(asked)
end
