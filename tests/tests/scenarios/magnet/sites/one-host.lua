-- The site has one name.
-- hook: raw-url
-- GET /a.txt?x=%20 {Host: other.test} -> 301 Location: http://www.site.test/one-host/a.txt?x=%20
-- GET /a.txt {Host: WWW.SITE.TEST} -> 200
-- GET /a.txt {Host: www.site.test} -> 200
local r = lighty.r
if r.req_attr["uri.authority"]:lower():gsub(":%d+$", "") ~= "www.site.test" then
    r.resp_header["Location"] = r.req_attr["uri.scheme"] .. "://www.site.test" .. r.req_attr["request.uri"]
    return 301
end
