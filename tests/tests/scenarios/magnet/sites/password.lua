-- A password that is asked for by the script itself.
-- hook: raw-url
-- GET /a.txt -> 401 Basic realm="script"
-- GET /a.txt {Authorization: Basic YW5uYTpwdw==} -> 200
-- GET /a.txt {Authorization: Basic YW5uYTpubw==} -> 401
-- GET /a.txt {Authorization: Basic !} -> 401
local users = { anna = "pw" }
local field = lighty.r.req_header["Authorization"] or ""
local name, password = (lighty.c.b64dec(field:match("^Basic (%S+)$")) or ""):match("^([^:]*):(.*)$")
if not (name and users[name] and lighty.c.secret_eq(users[name], password)) then
    lighty.r.resp_header["WWW-Authenticate"] = 'Basic realm="script"'
    return 401
end
