-- What all pages have in common, prepared once: the routes, and the template split at its values.
local harbour = {}

harbour.routes = {
  ["GET /news"] = "news", ["GET /shop"] = "shop", ["GET /help"] = "help", ["GET /team"] = "team",
  ["GET /jobs"] = "jobs", ["GET /blog"] = "blog", ["GET /docs"] = "docs", ["GET /wiki"] = "wiki",
  ["POST /shop"] = "sale", ["POST /blog"] = "post",
}
harbour.titles = {
  news = "Latest news", shop = "Ship stores", help = "Helping you", team = "Our masters",
  jobs = "All aboard!", blog = "The logbook", docs = "Regulations", wiki = "Sea stories",
  sale = "It is yours", post = "It is noted",
}

local entities = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;", ["'"] = "&#39;" }

function harbour.escape(text)
  return (text:gsub("[&<>\"']", entities))
end

-- Pieces of text at odd indices; at even ones, the value of the name in `names`.
local pieces, names = {}, {}
for text, name in ([==[@TEMPLATE@]==] .. "{{}}"):gmatch("(.-){{(%w*)}}") do
  pieces[#pieces + 1] = text
  names[#names + 1] = name
  pieces[#pieces + 1] = ""
end

function harbour.fill(values)
  for place = 1, #names - 1 do
    pieces[2 * place] = values[names[place]]
  end
  return table.concat(pieces)
end

return harbour
