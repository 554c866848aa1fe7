"""A Hugging Face hub on the loopback: serves one folder as one repository, and refuses others as the real one does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class FakeHub:
    """requests: the path of every request so far."""

    model: str
    commit: str
    folder: Path
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)  # model -> status and X-Error-Code
    requests: list[str] = field(default_factory=list)

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

    def answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        for model, (status, code) in self.refusals.items():
            if model in path:
                return status, b"{}", {"X-Error-Code": code, "X-Error-Message": code}
        if path == f"/api/models/{self.model}" or path.startswith(f"/api/models/{self.model}/revision/"):
            if path.rsplit("/", 1)[-1] not in (self.model.rsplit("/", 1)[-1], "main", self.commit):
                return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
            names = [{"rfilename": name} for name in self._files()]
            return self._json({"id": self.model, "sha": self.commit, "siblings": names})
        if path.startswith(f"/api/models/{self.model}/tree/"):
            return self._json([self._entry(name) for name in self._files()])
        prefix = f"/{self.model}/resolve/{self.commit}/"
        name = path.removeprefix(prefix)
        if path.startswith(prefix) and name in self._files():
            entry = self._entry(name)
            headers = {"ETag": f'"{entry["oid"]}"', "X-Repo-Commit": self.commit}
            return 200, (self.folder / name).read_bytes(), headers
        return 404, b"{}", {"X-Error-Code": "RepoNotFound"}

    def _files(self) -> list[str]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.folder).as_posix() for path in files)

    def _entry(self, name: str) -> dict[str, object]:
        data = (self.folder / name).read_bytes()
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    @staticmethod
    def _json(value: object) -> tuple[int, bytes, dict[str, str]]:
        return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        self.hub.requests.append(path)
        status, body, headers = self.hub.answer(path)
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass
