-- Nothing below a name that begins with a dot, but for what certificates need.
-- hook: raw-url
-- GET /.git/config -> 404
-- GET /a/.hidden?x -> 404
-- GET /%2egit/config -> 404
-- GET /.well-known/x.txt -> 200 well known
-- GET /a.txt -> 200
local path = lighty.r.req_attr["uri.path"]
for name in path:gmatch("/(%.[^/]*)") do
    if name ~= ".well-known" then
        return 404
    end
end
