-- Pictures are for this site's own pages.
-- hook: physical-path
-- GET /p.png -> 200 a picture
-- GET /p.png {Referer: http://site.test/page} -> 200 a picture
-- GET /p.png {Referer: http://evil.test/site.test} -> 403
-- GET /a.txt {Referer: http://evil.test/} -> 200
local path = lighty.env["physical.path"]
local referer = lighty.request["Referer"]
if path:find("%.png$") and referer and referer ~= "" then
    local host = referer:match("^https?://([^/:]+)")
    if host ~= "site.test" and host ~= "www.site.test" then
        return 403
    end
end
