-- Addresses of an older site, in a table.
-- hook: raw-url
-- GET /old.html -> 301 Location: /redirect-table/new/
-- GET /old.html?x=1 -> 301 Location: /redirect-table/new/?x=1
-- GET /shop/7 -> 302 Location: http://shop.test/item/7
-- GET /gone -> 410
-- GET /a.txt -> 200
local moved = { ["/old.html"] = "/redirect-table/new/", ["/start.asp"] = "/redirect-table/" }
local path = lighty.env["uri.path"]:sub(#"/redirect-table" + 1)
local query = lighty.env["uri.query"]
if moved[path] then
    lighty.header["Location"] = moved[path] .. (query and query ~= "" and "?" .. query or "")
    return 301
end
local item = path:match("^/shop/(%d+)$")
if item then
    lighty.header["Location"] = "http://shop.test/item/" .. item
    return 302
end
if path == "/gone" then return 410 end
