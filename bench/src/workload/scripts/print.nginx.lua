ngx.header.content_type = "text/html"
ngx.header.content_length = 3
ngx.print("123")
