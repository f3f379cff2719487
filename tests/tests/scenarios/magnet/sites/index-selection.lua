-- Which file stands for a directory is chosen by what is there, and listings are never shown.
-- hook: physical-path
-- GET /both/ -> 200 of both
-- GET /second/ -> 200 home
-- GET /none/ -> 404
-- GET /both -> 301
local path = lighty.env["physical.path"]
if path:sub(-1) == "/" then
    for _, name in ipairs { "start.txt", "home.txt", "readme.txt" } do
        local found = lighty.stat(path .. name)
        if found and found["is_file"] then
            lighty.env["physical.path"] = path .. name
            return
        end
    end
    return 404
end
