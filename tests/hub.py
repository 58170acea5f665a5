"""A stand-in for the Hugging Face hub on a local port, with the faults that a real network has."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlparse

SHA = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def serve(directory, repo="owner/name", kind="models", more=()):
    """Serve the files of `directory` as model (or, with kind "datasets", data set) `repo`. The server notes the files
    it `sent`; `missing` is a file that is listed but not there; the first transfer of `drop_once` breaks off; if it is
    `gated`, it refuses everything. more: further repositories, (directory, repo, kind) each."""

    first = directory, repo, kind

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self):
            path = urlparse(self.path).path.strip("/")
            asked = [place for place in more if f"{place[1]}/" in f"{path}/"]
            directory, repo, kind = asked[0] if asked else first
            prefix = repo if kind == "models" else f"{kind}/{repo}"
            if server.gated:
                message = f"Access to model {repo} is restricted. You must be authenticated."
                return self.reply(403, X_Error_Code="GatedRepo", X_Error_Message=message)
            if path.startswith(f"api/{kind}/{repo}/tree"):
                files = [
                    {
                        "type": "file",
                        "path": file.name,
                        "size": file.stat().st_size,
                        "oid": file.name,
                    }
                    for file in sorted(directory.iterdir())
                    if file.is_file()
                ]
                return self.reply(200, json.dumps(files).encode(), Content_Type="application/json")
            if path.startswith(f"api/{kind}/{repo}"):
                files = [
                    {"rfilename": file.name}
                    for file in sorted(directory.iterdir())
                    if file.is_file()
                ]
                return self.reply(
                    200,
                    json.dumps({"id": repo, "sha": SHA, "siblings": files}).encode(),
                    Content_Type="application/json",
                )
            name = path.rpartition("/")[2]
            if (
                not path.startswith(f"{prefix}/resolve/")
                or name == server.missing
                or not (directory / name).is_file()
            ):
                code = "EntryNotFound" if path.startswith(prefix) else "RepoNotFound"
                return self.reply(404, X_Error_Code=code)
            body = (directory / name).read_bytes()
            headers = {
                "ETag": f'"{hashlib.sha1(body).hexdigest()}"',
                "X_Repo_Commit": SHA,
                "Accept_Ranges": "bytes",
            }
            if self.command == "HEAD":
                return self.reply(200, **{**headers, "Content-Length": len(body)})
            server.sent.add(name)
            if name == server.drop_once:
                server.drop_once = None
                self.reply(200, body[: len(body) // 2], **{**headers, "Content-Length": len(body)})
                self.wfile.flush()
                return self.connection.close()
            start = int(self.headers.get("Range", "bytes=0-").split("=")[1].split("-")[0])
            status = 206 if "Range" in self.headers else 200
            self.reply(
                status,
                body[start:],
                Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}",
                **headers,
            )

        do_HEAD = do_GET

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url, server.sent = f"http://127.0.0.1:{server.server_port}", set()
    server.missing = server.drop_once = server.gated = None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
