-- One address for each page: no slash at the end, unless it is a directory.
-- hook: physical-path
-- GET /a.txt/ -> 301 Location: /slashes/a.txt
-- GET /page/x/?q=1 -> 301 Location: /slashes/page/x?q=1
-- GET /a.txt -> 200
local path = lighty.env["uri.path"]
local found = lighty.stat(lighty.env["physical.path"])
if #path > 1 and path:sub(-1) == "/" and not (found and found["is_dir"]) then
    local query = lighty.env["uri.query"]
    lighty.header["Location"] = path:gsub("/+$", "") .. (query and query ~= "" and "?" .. query or "")
    return 301
end
