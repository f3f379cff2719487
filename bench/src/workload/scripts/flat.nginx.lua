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
local entities = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }

local var = ngx.var
local method, path = ngx.req.get_method(), var.uri
local page = routes[method .. " " .. path]
if not page then
  return ngx.exit(404)
end

local visits = (tonumber(var.cookie_visits) or 0) + 1

local head = ngx.header
head["Content-Type"] = "text/html; charset=utf-8"
head["Cache-Control"] = "private, no-cache"
head["X-Frame-Options"] = "SAMEORIGIN"
head["Set-Cookie"] = "visits=" .. visits .. "; Path=/; HttpOnly"

local agent = var.http_user_agent or "a browser without a name"
local body = template:gsub("{{(%w+)}}", {
  title = titles[page],
  heading = titles[page] .. " from the harbour",
  class = page,
  method = method,
  path = (path:gsub("[&<>\"']", entities)),
  agent = (agent:gsub("[&<>\"']", entities)),
  canonical = "https://harbour.example" .. path,
  next = path .. "?page=2",
  visits = visits,
  greeting = visits > 1 and "Welcome back" or "Welcome",
})
head["Content-Length"] = #body
ngx.print(body)
