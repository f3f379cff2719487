-- While a file of that name is there, all pages say so; pictures go on.
-- hook: physical-path
-- GET /a.txt -> 503 back soon
-- GET /p.png -> 200 a picture
-- POST /a.txt -> 503 Retry-After: 120
local flag = lighty.env["physical.doc-root"] .. "/maintenance/closed"
if lighty.stat(flag) and not lighty.env["uri.path"]:find("%.png$") then
    lighty.header["Content-Type"] = "text/html"
    lighty.header["Retry-After"] = "120"
    lighty.header["Cache-Control"] = "no-store"
    lighty.content = { "<p>back soon, ", "<b>", lighty.env["uri.authority"], "</b>" }
    return 503
end
