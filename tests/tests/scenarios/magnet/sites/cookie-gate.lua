-- Only those with the right cookie get in; others are led to a page that knows where they wanted to go.
-- hook: raw-url
-- GET /a.txt -> 302 Location: /login?to=/cookie-gate/a.txt
-- GET /a.txt?x=1 {Cookie: a=b; pass=wrong} -> 302
-- GET /a.txt {Cookie: a=b; pass=sesame} -> 200
-- GET /a.txt {Cookie: pass="sesame"} -> 302
local cookies = lighty.c.cookie_tokens(lighty.r.req_header["Cookie"])
if cookies["pass"] ~= "sesame" then
    local target = lighty.r.req_attr["request.uri"]
    lighty.r.resp_header["Location"] = "/login?to=" .. lighty.c.urlenc(target)
    lighty.r.resp_header["Set-Cookie"] = "seen=1; Path=/"
    return 302
end
