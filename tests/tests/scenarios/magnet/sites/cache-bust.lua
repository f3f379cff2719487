-- Names with a version in them are the files without it, and may be kept for ever.
-- hook: physical-path
-- GET /app.20240501.css -> 200 p { }
-- GET /app.css -> 200 p { }
-- GET /app.1.css -> 404
local path = lighty.env["physical.path"]
local stem, suffix = path:match("^(.+)%.%d%d%d%d%d%d%d%d%.(%a+)$")
if stem and lighty.stat(stem .. "." .. suffix) then
    lighty.env["physical.path"] = stem .. "." .. suffix
    lighty.header["Cache-Control"] = "public, max-age=31536000, immutable"
end
