-- Fields that every answer should have, when it begins.
-- hook: response-start
-- GET /a.txt -> 200 X-Content-Type-Options: nosniff
-- GET /none -> 404 X-Robots-Tag: noindex
-- GET /t.php -> 200 X-Powered-By: nothing special
local status = lighty.r.req_item.http_status
local fields = lighty.r.resp_header
fields["X-Content-Type-Options"] = "nosniff"
fields["Referrer-Policy"] = "same-origin"
if status >= 400 then
    fields["X-Robots-Tag"] = "noindex"
end
if fields["X-Powered-By"] then
    fields["X-Powered-By"] = "nothing special"
end
