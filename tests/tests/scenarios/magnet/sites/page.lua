-- A page that the script writes, of text and parts of files.
-- hook: physical-path
-- GET /x?name=a%26b -> 200 <li>a&#x26;b
-- GET /x -> 200 <li>(none)
local name = lighty.c.urldec_query(lighty.r.req_attr["uri.query"] or "")["name"] or "(none)"
local root = lighty.r.req_attr["physical.doc-root"]
lighty.r.resp_header["Content-Type"] = "text/html; charset=utf-8"
lighty.r.resp_body.set({
    "<ul>", "<li>" .. lighty.c.xmlenc(name), "<li>",
    { filename = root .. "/page/part.txt", offset = 2, length = 3 },
    "</ul>", { filename = root .. "/page/part.txt" },
})
return 200
