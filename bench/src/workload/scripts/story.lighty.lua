local r = lighty.r
r.resp_header["Content-Type"] = "text/plain"
r.resp_body.set({ "Story matching ", r.req_attr["uri.path"], "\n" })
return 200
