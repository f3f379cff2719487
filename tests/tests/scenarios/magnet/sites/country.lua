-- What a balancer in front knows of the client decides about a field and a page.
-- hook: physical-path
-- GET /a.txt {X-Country: DE} -> 200 X-Region: eu
-- GET /a.txt {X-Country: us} -> 200 X-Region: world
-- GET /a.txt -> 200 X-Region: world
-- GET /a.txt {X-Country: XX} -> 451
local regions = { DE = "eu", FR = "eu", NL = "eu" }
local country = (lighty.request["X-Country"] or ""):upper()
if country == "XX" then
    return 451
end
lighty.header["X-Region"] = regions[country] or "world"
lighty.header["Vary"] = "X-Country"
