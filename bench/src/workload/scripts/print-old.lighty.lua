lighty.header["Content-Type"] = "text/html"
lighty.content = { "123" }
return 200
