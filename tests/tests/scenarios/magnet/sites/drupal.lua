-- Drupal up to 7: the path becomes the parameter q.
-- hook: physical-path
-- GET /node/1 -> 200 QUERY_STRING=q=node/1
-- GET /node/1?page=2 -> 200 QUERY_STRING=page=2&q=node/1
-- GET /img/p.png -> 200 a picture
-- GET /user/login?destination=a%2Fb -> 200 REQUEST_URI=/drupal/user/login?destination=a%2Fb
local prefix = "/drupal/"
local stat = lighty.stat(lighty.env["physical.path"])
if not stat then
    local path = lighty.env["uri.path"]
    if path:sub(1, #prefix) == prefix then
        local query = lighty.env["uri.query"] or ""
        if query ~= "" then query = query .. "&" end
        lighty.env["uri.query"] = query .. "q=" .. path:sub(#prefix + 1)
        lighty.env["uri.path"] = prefix .. "index.php"
        lighty.env["physical.rel-path"] = lighty.env["uri.path"]
        lighty.env["physical.path"] = lighty.env["physical.doc-root"] .. lighty.env["physical.rel-path"]
    end
end
