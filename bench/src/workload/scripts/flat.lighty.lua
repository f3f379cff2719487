local template = [==[@TEMPLATE@]==]

local routes = {
  ["GET /news"] = "news", ["GET /shop"] = "shop", ["GET /help"] = "help", ["GET /team"] = "team",
  ["GET /jobs"] = "jobs", ["GET /blog"] = "blog", ["GET /docs"] = "docs", ["GET /wiki"] = "wiki",
  ["POST /shop"] = "sale", ["POST /blog"] = "post",
}
local titles = {
  news = "Latest news", shop = "Ship stores", help = "Helping you", team = "Our masters",
  jobs = "All aboard!", blog = "The logbook", docs = "Regulations", wiki = "Sea stories",
  sale = "It is yours", post = "It is noted",
}

local r = lighty.r
local method, path = r.req_attr["request.method"], r.req_attr["uri.path"]
local page = routes[method .. " " .. path]
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

local body = template:gsub("{{(%w+)}}", {
  title = titles[page],
  heading = titles[page] .. " from the harbour",
  class = page,
  method = method,
  path = lighty.c.xmlenc(path),
  agent = lighty.c.xmlenc(r.req_header["User-Agent"] or "a browser without a name"),
  canonical = "https://harbour.example" .. path,
  next = path .. "?page=2",
  visits = visits,
  greeting = visits > 1 and "Welcome back" or "Welcome",
})
r.resp_body.set({ body })
return 200
