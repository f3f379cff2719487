lighty.r.resp_header["Content-Type"] = "text/html"
lighty.r.resp_body.set({ "123" })
return 200
