-- Hosts of customers by directories; those without one get the default.
-- hook: physical-path
-- GET /a.txt {Host: one.test} -> 200 a of one
-- GET /a.txt {Host: one.test:8080} -> 200 a of one
-- GET /a.txt {Host: none.test} -> 200 a of the default
-- GET /run.php {Host: one.test} -> 200 SCRIPT_NAME=/virtual-host/run.php
local host = lighty.env["uri.authority"]:gsub(":%d+$", "")
local hosts = lighty.env["physical.doc-root"] .. "/../hosts/"
local found = lighty.stat(hosts .. host)
local root = hosts .. (found and found.is_dir and host or "default")
lighty.env["physical.doc-root"] = root
lighty.env["physical.path"] = root .. lighty.env["physical.rel-path"]
