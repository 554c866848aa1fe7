"""serve: one process that listens at once, starts the engine behind it, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable
from types import FrameType
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI

from helios.config import EngineConfig, ServerConfig
from helios.engine.messages import AddRequest, Progress, RequestOutput
from helios.engine.process.client import EngineClient, EngineDeadError
from helios.engine.status import CaptureState, EngineStats, StartupProgress
from helios.faults import Refusal
from helios.model.hub import resolve
from helios.server.app import create_app
from helios.server.app_state import ServerState
from helios.server.errors import unavailable
from helios.server.prompts import ModelText

log = logging.getLogger(__name__)

# Seconds that responses get to leave after draining has ended, the error events of cut-off streams among them.
LAST_WORDS_SECONDS = 2
NOT_HERE = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # of one address among several: IPv6 may be turned off
PROBES = ("/live", "/health", "/metrics", "/internal/capture")


def serve(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    on_progress: Callable[[Progress], None] | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT, or until the engine fails to start. Returns the exit code.

    A first signal drains: new requests get 503, open ones have drain_seconds to finish; 0 if all did, else 1. A second
    signal ends the process at once. A model or engine that does not start ends it with 1 and the reason in the log,
    one that dies in service does not: /health then says so. on_progress: told of every step of the engine's start.
    Raises Refusal where it cannot listen.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.access").addFilter(_is_no_probe)
    return asyncio.run(_serve(engine_config, server_config, on_progress))


async def _serve(
    engine_config: EngineConfig, server_config: ServerConfig, on_progress: Callable[[Progress], None] | None
) -> int:
    names = (engine_config.served_model_name or engine_config.model,)
    sockets = listen(server_config.host, server_config.port)
    app = create_app(NoEngineYet(), None, server_config, names)
    server = DrainingServer(app, server_config)
    boot = asyncio.create_task(_boot(server, engine_config, on_progress))
    try:
        await server.serve(sockets)
    finally:
        boot.cancel()
        await asyncio.gather(boot, return_exceptions=True)
        engine = server.state.engine
        if isinstance(engine, EngineClient):
            await engine.shutdown()
    return server.exit_code


async def _boot(
    server: DrainingServer, config: EngineConfig, on_progress: Callable[[Progress], None] | None
) -> None:
    """Find the model's files, start the engine on them and read the tokenizer meanwhile; stop the server if that fails."""
    state = server.state
    engine: EngineClient | None = None
    await server.listening.wait()
    try:
        files = await asyncio.to_thread(
            resolve, config.model, config.revision, weights=config.load_format != "dummy"
        )
        # One snapshot for everything: what a branch points to may change before the engine looks.
        engine = EngineClient(dataclasses.replace(config, revision=files.revision), on_progress=on_progress)
        state.names = (config.served_model_name or files.name,)
        state.engine = engine
        await engine.start()
        state.text = await asyncio.to_thread(ModelText.from_folder, files.path)
        await engine.wait_ready()
        log.info("Ready: %s at %s", state.names[0], server.url)
    except Exception as error:
        has_said_all = isinstance(error, EngineDeadError | Refusal)
        log.error("Cannot start: %s", error, exc_info=None if has_said_all else error)
        refused = isinstance(error, Refusal) or (engine is not None and engine.refused)
        server.stop(exit_code=2 if refused else 1)


def listen(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of `host`, bound to `port`. Raises Refusal where that cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Refusal(f"host {host} is no address to listen on: {error.strerror}", field="host") from error
    sockets: list[socket.socket] = []
    for family, _, _, _, address in found:
        try:
            sockets.append(_bound(family, address))
        except OSError as error:
            if error.errno in NOT_HERE and (sockets or address != found[-1][-1]):
                continue
            for sock in sockets:
                sock.close()
            raise Refusal(
                f"port {port} of {host} cannot be listened on: {error.strerror}; choose another port or host",
                field="port",
            ) from error
    return sockets


def _bound(family: socket.AddressFamily, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


def _is_no_probe(record: logging.LogRecord) -> bool:
    """Whether an access log line is worth a look: probes come every second or so, and bury everything else."""
    assert isinstance(record.args, tuple), "uvicorn logs an access with its parts in a row"
    _, method, path, _, status = record.args
    return not (method == "GET" and path in PROBES and status in (200, 503))


class DrainingServer(uvicorn.Server):
    """uvicorn, but a first SIGTERM or SIGINT lets open requests finish while new ones hear 503."""

    def __init__(self, app: FastAPI, config: ServerConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=config.host,
                port=config.port,
                server_header=False,
                timeout_graceful_shutdown=LAST_WORDS_SECONDS,
            )
        )
        self.state: ServerState = app.state.server
        self.listening = asyncio.Event()
        self.exit_code = 0
        self._drain_seconds = config.drain_seconds
        self._drain: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.listening.set()
        log.info("Listening on %s", self.url)

    def stop(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the signal. The second one ends the process here and now; its engine goes with it."""
        if self.state.draining or not self.listening.is_set():
            os._exit(128 + sig)
        self.state.draining = True
        self._loop.call_soon_threadsafe(self._begin_drain)

    def _begin_drain(self) -> None:
        self._drain = asyncio.create_task(self._drain_and_stop())

    async def _drain_and_stop(self) -> None:
        log.info("Draining: %d open requests have %g s", len(self.state.open), self._drain_seconds)
        deadline = self._loop.time() + self._drain_seconds
        while self.state.open and self._loop.time() < deadline:
            await asyncio.sleep(0.02)
        if cut := len(self.state.open):
            log.warning("%d requests did not finish in time and are ended", cut)
            self.state.fail_open(unavailable("The server is shutting down.", code="shutting_down"))
        self.stop(exit_code=1 if cut else 0)


@dataclasses.dataclass(frozen=True)
class NoEngineYet:
    """The Engine before there is one, while the model's files are looked up or downloaded."""

    state: Literal["starting"] = "starting"
    info: None = None
    dead_reason: None = None
    progress: StartupProgress = dataclasses.field(default_factory=lambda: StartupProgress("find model"))

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        raise RuntimeError("there is no engine yet")
        yield

    async def stats(self, timeout: float) -> EngineStats:
        raise RuntimeError("there is no engine yet")

    async def capture(self, timeout: float) -> CaptureState:
        raise RuntimeError("there is no engine yet")

    async def clear_prefix_cache(self) -> int:
        raise RuntimeError("there is no engine yet")
