local harbour = require "harbour"

local r = lighty.r
local method, path = r.req_attr["request.method"], r.req_attr["uri.path"]
local page = harbour.routes[method .. " " .. path]
if not page then
  return 404
end

local cookies = lighty.c.cookie_tokens(r.req_header["Cookie"])
local visits = (tonumber(cookies.visits) or 0) + 1

local head = r.resp_header
head["Content-Type"] = "text/html; charset=utf-8"
head["Cache-Control"] = "private, no-cache"
head["X-Frame-Options"] = "SAMEORIGIN"
head["Set-Cookie"] = "visits=" .. visits .. "; Path=/; HttpOnly"

local title = harbour.titles[page]
r.resp_body.set({ harbour.fill({
  title = title,
  heading = title .. " from the harbour",
  class = page,
  method = method,
  path = harbour.escape(path),
  agent = harbour.escape(r.req_header["User-Agent"] or "a browser without a name"),
  canonical = "https://harbour.example" .. path,
  next = path .. "?page=2",
  visits = visits,
  greeting = visits > 1 and "Welcome back" or "Welcome",
}) })
return 200
