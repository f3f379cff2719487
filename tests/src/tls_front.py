"""Speaks TLS with OpenSSL for a backend that does not.

Arguments: a JSON object. Writes a line for each handshake to the file "log".
"""
import json
import os
import select
import socket
import ssl
import sys
import threading

options = json.loads(sys.argv[1])
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(options["certificate"], options["key"])
context.set_alpn_protocols(["h2", "http/1.1"])
if options["mode"] == "tls1.2":
    context.maximum_version = ssl.TLSVersion.TLSv1_2
if options["client_ca"]:
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(options["client_ca"])
names = {}
context.sni_callback = lambda session, name, _: names.__setitem__(session, name)
log = open(options["log"], "a", buffering=1)


def backend():
    path = options["backend"]
    if path.startswith("unix:"):
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(path[5:])
        return stream
    host, port = path.rsplit(":", 1)
    return socket.create_connection((host, int(port)))


def serve(connection):
    prefix = b""
    if options["mode"] == "proxy":
        while not prefix.endswith(b"\n"):
            prefix += connection.recv(1)
    try:
        session = context.wrap_socket(connection, server_side=True)
    except (ssl.SSLError, OSError) as error:
        log.write("failed %s\n" % error)
        return
    kind = "resumed" if session.session_reused else "full"
    peer = session.getpeercert() or {}
    subject = "".join("%s=%s" % pair for part in peer.get("subject", ()) for pair in part)
    log.write("%s %s %s %s %s\n" % (
        kind, session.version(), names.pop(session, None), session.selected_alpn_protocol(),
        prefix.decode().strip() or subject))
    stream = backend()
    try:
        relay(session, stream)
    except OSError:
        pass
    stream.close()


def relay(session, stream):
    readers = [session, stream]
    while True:
        ready = [session] if session.pending() else select.select(readers, [], [])[0]
        if session in ready:
            data = session.recv(65536)
            if data:
                stream.sendall(data)
            else:
                readers.remove(session)
                stream.shutdown(socket.SHUT_WR)
        if stream in ready:
            data = stream.recv(65536)
            if data:
                session.sendall(data)
            elif options["mode"] == "abrupt":
                os.close(session.detach())
                return
            else:
                session.settimeout(1)
                session.unwrap().close()
                return


if "socket" in options:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(options["socket"])
    listener.listen(128)
else:
    listener = socket.create_server(("127.0.0.1", options["port"]), backlog=128)
log.write("ready\n")
while True:
    accepted, _ = listener.accept()
    threading.Thread(target=serve, args=(accepted,), daemon=True).start()
