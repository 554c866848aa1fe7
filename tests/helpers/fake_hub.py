"""A Hugging Face hub on the loopback: one repository with commits, branches and tags, and the real hub's refusals.

It serves byte ranges and can cut a connection half-way through a file.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

Answer = tuple[int, bytes, dict[str, str]]  # status, body and headers


@dataclass
class FakeHub:
    """snapshots: commit -> folder. refs: branch or tag -> commit. refusals: start of a path -> status and X-Error-Code.
    cuts: name of a file -> how many more of its answers break off half-way. pace: seconds before a file's bytes.
    requests: of every request so far, its method, its path and its Range."""

    model: str
    snapshots: dict[str, Path]
    refs: dict[str, str]
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    pace: float = 0.0
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Yields the endpoint's URL."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def downloads(self, name: str) -> list[str | None]:
        """The Range of each download of a file, None for a whole one."""
        ending = f"/{name}"
        return [span for method, path, span in self.requests if method == "GET" and path.endswith(ending)]

    def answer(self, path: str) -> Answer:
        for start, (status, code) in self.refusals.items():
            if path.startswith(start):
                return self._refuse(status, code)
        api, files = f"/api/models/{self.model}", f"/{self.model}/resolve/"
        if path == api:
            return self._info("main")
        if path.startswith(f"{api}/revision/"):
            return self._info(path.removeprefix(f"{api}/revision/"))
        if path.startswith(f"{api}/tree/"):
            folder = self._folder(path.removeprefix(f"{api}/tree/"))
            if folder is None:
                return self._refuse(404, "RevisionNotFound")
            return self._json([_entry(folder, name) for name in _names(folder)])
        if path.startswith(files):
            commit, _, name = path.removeprefix(files).partition("/")
            return self._file(commit, name)
        # What the real hub says of any repository that does not exist, or is not yours to see.
        return self._refuse(401, "RepoNotFound")

    def is_cut(self, path: str) -> bool:
        name = path.rsplit("/", 1)[-1]
        left = self.cuts.get(name, 0)
        self.cuts[name] = max(left - 1, 0)
        return left > 0

    def _folder(self, revision: str) -> Path | None:
        return self.snapshots.get(self.refs.get(revision, revision))

    def _info(self, revision: str) -> Answer:
        folder = self._folder(revision)
        if folder is None:
            return self._refuse(404, "RevisionNotFound")
        siblings = [{"rfilename": name} for name in _names(folder)]
        return self._json({"id": self.model, "sha": self.refs.get(revision, revision), "siblings": siblings})

    def _file(self, commit: str, name: str) -> Answer:
        folder = self._folder(commit)
        if folder is None:
            return self._refuse(404, "RevisionNotFound")
        if name not in _names(folder):
            return self._refuse(404, "EntryNotFound")
        headers = {
            "ETag": f'"{_entry(folder, name)["oid"]}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        return 200, (folder / name).read_bytes(), headers

    @staticmethod
    def _refuse(status: int, code: str) -> Answer:
        return status, b"{}", {"X-Error-Code": code, "X-Error-Message": code}

    @staticmethod
    def _json(value: object) -> Answer:
        return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


def _names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _entry(folder: Path, name: str) -> dict[str, object]:
    data = (folder / name).read_bytes()
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        path, span = unquote(self.path.split("?")[0]), self.headers.get("Range")
        self.hub.requests.append((self.command, path, span))
        status, body, headers = self.hub.answer(path)
        if span is not None and status == 200:
            first = int(span.removeprefix("bytes=").partition("-")[0])
            headers = headers | {"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"}
            status, body = 206, body[first:]
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            time.sleep(self.hub.pace if "/resolve/" in path else 0)
            # The connection closes after each answer, so that half a body is a cut connection.
            self.wfile.write(body[: len(body) // 2] if self.hub.is_cut(path) else body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass
