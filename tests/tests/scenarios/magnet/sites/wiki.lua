-- A wiki: the title as a parameter, written as the client wrote it, and the request begins anew.
-- hook: raw-url
-- GET /Main_Page -> 200 QUERY_STRING=title=Main_Page
-- GET /A%26B?action=edit -> 200 QUERY_STRING=title=A%26B&action=edit
-- GET /index.php?title=x -> 200 QUERY_STRING=title=x
local target = lighty.r.req_attr["request.uri"]
local title, query = target:match("^/wiki/([^?]+)%??(.*)$")
if title and not title:find("^index%.php") then
    query = query ~= "" and "&" .. query or ""
    lighty.r.req_attr["request.uri"] = "/wiki/index.php?title=" .. title .. query
    return lighty.RESTART_REQUEST
end
