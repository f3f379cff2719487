local redis = require "nginx.redis"
local store = redis:new()
store:set_timeout(30000)
assert(store:connect("127.0.0.1", @REDIS_PORT@))
local value = assert(store:get("key"))
store:set_keepalive(60000, 4000)
ngx.header.content_type = "text/html"
ngx.header.content_length = #value
ngx.print(value)
