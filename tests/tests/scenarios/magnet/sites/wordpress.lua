-- WordPress: what is no file is answered by index.php, which looks at REQUEST_URI.
-- hook: physical-path
-- GET /2024/05/a-post/ -> 200 REQUEST_URI=/wordpress/2024/05/a-post/
-- GET /?p=1 -> 200 QUERY_STRING=p=1
-- GET /img/p.png -> 200 a picture
-- GET /wp-admin/ -> 200 SCRIPT_NAME=/wordpress/wp-admin/index.php
-- GET /feed?x=a%20b -> 200 SCRIPT_NAME=/wordpress/index.php
local attributes = lighty.env
if not lighty.stat(attributes["physical.path"]) then
    local script = "/wordpress/index.php"
    attributes["uri.path"] = script
    attributes["physical.rel-path"] = script
    attributes["physical.path"] = attributes["physical.doc-root"] .. script
end
