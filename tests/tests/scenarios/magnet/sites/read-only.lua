-- A mirror answers no method that writes.
-- hook: raw-url
-- GET /a.txt -> 200
-- HEAD /a.txt -> 200
-- POST /a.txt -> 405 Allow: GET, HEAD
-- DELETE /a.txt -> 405
local method = lighty.env["request.method"]
if method ~= "GET" and method ~= "HEAD" then
    lighty.header["Allow"] = "GET, HEAD"
    lighty.header["Content-Type"] = "text/plain"
    lighty.content = { method .. " is not for mirrors\n" }
    return 405
end
