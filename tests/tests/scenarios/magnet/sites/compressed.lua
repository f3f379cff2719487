-- Files that were compressed beforehand.
-- hook: physical-path
-- GET /page.txt {Accept-Encoding: br, gzip} -> 200 Content-Encoding: gzip
-- GET /page.txt {Accept-Encoding: br} -> 200 plain page
-- GET /a.txt {Accept-Encoding: gzip} -> 200
local path = lighty.env["physical.path"]
local accepted = lighty.request["Accept-Encoding"] or ""
if path:find("%.txt$") and accepted:find("gzip", 1, true) and lighty.stat(path .. ".gz") then
    lighty.header["Content-Type"] = "text/plain"
    lighty.header["Content-Encoding"] = "gzip"
    lighty.header["Vary"] = "Accept-Encoding"
    lighty.env["physical.path"] = path .. ".gz"
end
