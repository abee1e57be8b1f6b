"""A Hugging Face hub on a local port that serves one dataset from a folder, as far as ``datasets`` asks for it."""

import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BRANCH = "refs/convert/parquet"
COMMIT = "c0ffee" + "0" * 34


@contextmanager
def serve(name: str, root: Path, refuse: tuple[int, str] | None = None) -> Iterator[str]:
    """Address of the hub. ``refuse``: status and X-Error-Code with which it answers requests for files."""
    handler = type("Handler", (_Handler,), {"dataset": name, "root": root, "refuse": refuse})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    dataset: str
    root: Path
    refuse: tuple[int, str] | None

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        api, files = f"/api/datasets/{self.dataset}", f"/datasets/{self.dataset}/resolve/{COMMIT}/"
        if path in (f"{api}/revision/{BRANCH}", f"{api}/revision/{COMMIT}"):
            self._json(
                {"id": self.dataset, "sha": COMMIT, "private": False, "downloads": 0, "tags": [], "siblings": []}
            )
        elif path.startswith("/api/datasets/") and not path.startswith(api):
            self._answer(401, **{"X-Error-Code": "RepoNotFound"})
        elif self.refuse:
            self._answer(self.refuse[0], **{"X-Error-Code": self.refuse[1]})
        elif path.startswith(f"{api}/tree/{COMMIT}"):
            self._tree(self.root / path.removeprefix(f"{api}/tree/{COMMIT}").strip("/"))
        elif path.startswith(files) and (self.root / path.removeprefix(files)).is_file():
            self._file((self.root / path.removeprefix(files)).read_bytes())
        else:
            self._answer(404, **{"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_POST = do_GET

    def _tree(self, folder: Path) -> None:
        if not folder.is_dir():
            self._answer(404, **{"X-Error-Code": "EntryNotFound"})
            return
        found = folder.rglob("*") if "recursive=true" in self.path.lower() else folder.iterdir()
        self._json(
            [
                {
                    "type": "directory" if path.is_dir() else "file",
                    "path": path.relative_to(self.root).as_posix(),
                    "size": 0 if path.is_dir() else path.stat().st_size,
                    "oid": "0" * 40,
                }
                for path in sorted(found)
            ]
        )

    def _file(self, content: bytes) -> None:
        headers = {"X-Repo-Commit": COMMIT, "ETag": '"x"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not wanted:
            self._answer(200, content, **headers)
            return
        start, end = int(wanted[1]), int(wanted[2] or len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        self._answer(206, content[start : end + 1], **headers)

    def _json(self, value: dict | list) -> None:
        self._answer(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass
