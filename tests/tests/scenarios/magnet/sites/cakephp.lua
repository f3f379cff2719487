-- CakePHP: files of the web root without its name, all else is the dispatcher's.
-- hook: physical-path
-- GET /img/p.png -> 200 a picture
-- GET /posts/view/3?x -> 200 QUERY_STRING=url=posts/view/3&x
local function file_exists(path)
    local found = lighty.c.stat(path)
    return found and found.is_file
end
local r = lighty.r.req_attr
local rest = r["uri.path"]:match("^/cakephp/(.*)$")
if rest then
    local file = r["physical.doc-root"] .. "/cakephp/webroot/" .. rest
    if rest ~= "" and file_exists(file) then
        r["physical.path"] = file
    else
        local query = r["uri.query"]
        r["uri.query"] = "url=" .. rest .. (query and query ~= "" and "&" .. query or "")
        r["uri.path"] = "/cakephp/webroot/index.php"
        r["physical.rel-path"] = r["uri.path"]
        r["physical.path"] = r["physical.doc-root"] .. r["uri.path"]
    end
end
