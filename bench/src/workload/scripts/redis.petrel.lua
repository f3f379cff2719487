local store = petrel.redis({ host = "127.0.0.1", port = @REDIS_PORT@, timeout = 30 })
local value = assert(store:get("key"))
lighty.r.resp_header["Content-Type"] = "text/html"
lighty.r.resp_body.set({ value })
return 200
