-- Small screens get pages of their own where there are any, unless a cookie says otherwise.
-- hook: physical-path
-- GET /a.txt {User-Agent: Mozilla/5.0 (Linux; Android 14) Mobile} -> 200 for small screens
-- GET /a.txt {User-Agent: Mozilla/5.0 (X11)} -> 200 0123456789
-- GET /p.png {User-Agent: Mobile} -> 200 a picture
local agent = lighty.request["User-Agent"] or ""
local cookie = lighty.request["Cookie"] or ""
if agent:find("Mobile", 1, true) and not cookie:find("view=full", 1, true) then
    local other = lighty.env["physical.doc-root"] .. "/mobile/m" .. lighty.env["uri.path"]:sub(#"/mobile" + 1)
    if lighty.stat(other) then
        lighty.env["physical.path"] = other
    end
end
lighty.header["Vary"] = "User-Agent, Cookie"
