-- Links that end: /signed/FILE?e=TIME&s=MD5 of key, file and time.
-- hook: physical-path
-- GET /a.txt?e=4000000000&s=d1d4ac2b1a7c8a2e6fdb6ac4e2b4e9b5 -> 403 wrong
-- GET /a.txt?e=1000&s=0 -> 410
-- GET /a.txt -> 403 no signature
local parameters = lighty.c.urldec_query(lighty.r.req_attr["uri.query"] or "")
local ends, sum = tonumber(parameters["e"]), parameters["s"]
lighty.r.resp_header["Content-Type"] = "text/plain"
if not ends or not sum then
    lighty.r.resp_body.set({ "no signature" })
    return 403
end
if ends < lighty.c.time() then
    lighty.r.resp_body.set({ "too late" })
    return 410
end
local right = lighty.c.md("md5", "key" .. lighty.r.req_attr["uri.path"] .. ends)
if not lighty.c.digest_eq(sum, right) then
    lighty.r.resp_body.set({ "wrong" })
    return 403
end
lighty.r.resp_header["Content-Type"] = nil
