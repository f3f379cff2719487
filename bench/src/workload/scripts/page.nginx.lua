local harbour = require "harbour"

local var = ngx.var
local method, path = ngx.req.get_method(), var.uri
local page = harbour.routes[method .. " " .. path]
if not page then
  return ngx.exit(404)
end

local visits = (tonumber(var.cookie_visits) or 0) + 1

local head = ngx.header
head["Content-Type"] = "text/html; charset=utf-8"
head["Cache-Control"] = "private, no-cache"
head["X-Frame-Options"] = "SAMEORIGIN"
head["Set-Cookie"] = "visits=" .. visits .. "; Path=/; HttpOnly"

local title = harbour.titles[page]
local body = harbour.fill({
  title = title,
  heading = title .. " from the harbour",
  class = page,
  method = method,
  path = harbour.escape(path),
  agent = harbour.escape(var.http_user_agent or "a browser without a name"),
  canonical = "https://harbour.example" .. path,
  next = path .. "?page=2",
  visits = visits,
  greeting = visits > 1 and "Welcome back" or "Welcome",
})
head["Content-Length"] = #body
ngx.print(body)
