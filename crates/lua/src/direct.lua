-- A function that calls the host by LuaJIT's FFI, as compiled C calls C. Each one is compiled from this text by
-- itself: addresses are then constants of the machine code.
local ffi, enter, context, reply, other = ...
local copied, type = ffi.string, type
local call = ffi.cast("double (*)(const void *, uint32_t, const char *, size_t, const char *, size_t)", enter)
local place = ffi.cast("const void *", context)
local answer = ffi.cast("const struct { int32_t length; char text[1]; } *", reply)
local answer_text = ffi.cast("const char *", answer.text)

return function(first, second)
   local bytes = 0
   if type(second) == "string" then
      bytes = #second
   elseif second ~= nil then
      return other(first, second)
   end
   local result
   if type(first) == "string" then
      result = call(place, 0, first, #first, second, bytes)
   elseif type(first) == "number" then
      result = call(place, first, nil, 0, second, bytes)
   elseif first == nil then
      result = call(place, 0, nil, 0, second, bytes)
   else
      return other(first, second)
   end
   -- The values of `DirectAnswer`.
   if result >= 0 then
      return result
   elseif result == -1 then
      return nil
   elseif result == -2 then
      return true
   elseif result == -3 then
      return copied(answer_text, answer.length)
   end
   return other(first, second)
end
