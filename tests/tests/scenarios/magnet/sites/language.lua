-- The page in the language that the client likes best of those that are there.
-- hook: physical-path
-- GET /page.html {Accept-Language: de-DE,de;q=0.9,en;q=0.5} -> 200 eine Seite
-- GET /page.html {Accept-Language: fr;q=0.3, en;q=0.8} -> 200 a page
-- GET /page.html {Accept-Language: en;q=0.1, de;q=0.2} -> 200 Content-Language: de
-- GET /page.html -> 200 a page
-- GET /a.txt {Accept-Language: de} -> 200
local base, suffix = lighty.env["physical.path"]:match("^(.*)(%.html)$")
if base then
    local best, best_weight = nil, 0
    for range in (lighty.request["Accept-Language"] or ""):gmatch("[^,]+") do
        local language = range:match("^%s*(%a%a)")
        local weight = tonumber(range:match(";%s*q=([%d.]+)") or 1)
        if language and weight > best_weight and lighty.stat(base .. "." .. language:lower() .. suffix) then
            best, best_weight = language:lower(), weight
        end
    end
    best = best or "en"
    lighty.header["Content-Language"] = best
    lighty.header["Vary"] = "Accept-Language"
    lighty.env["physical.path"] = base .. "." .. best .. suffix
end
