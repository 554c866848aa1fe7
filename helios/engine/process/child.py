"""The engine process: an EngineCore behind one ZeroMQ socket, stepped for as long as it has work.

It is started by EngineClient as `python -m helios.engine.process.child` with a Launch on its standard input, and it never
outlives its parent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq

from helios.bytecode import keep_bytecode
from helios.config import EngineConfig
from helios.engine.messages import (
    AbortRequest,
    AddRequest,
    CaptureReply,
    ClearPrefixCache,
    Fatal,
    FromEngine,
    GetCapture,
    GetStats,
    Outputs,
    PrefixCacheCleared,
    Progress,
    Question,
    Ready,
    RequestOutput,
    Shutdown,
    StatsReply,
    ToEngine,
)
from helios.engine.status import CaptureState, EngineInfo, EngineStats
from helios.faults import Refusal

logger = logging.getLogger("helios.engine")

CORE = "helios.engine.core:EngineCore"
PARENT_POLL_SECONDS = 0.5
FLUSH_MS = 2000
_PR_SET_PDEATHSIG = 1


class Core(Protocol):
    """What the process needs of an engine; EngineCore is one."""

    @property
    def has_work(self) -> bool: ...

    def add(self, request: AddRequest) -> RequestOutput | None: ...
    def abort(self, request_id: str) -> None: ...
    def step(self) -> list[RequestOutput]: ...
    def stats(self) -> EngineStats: ...
    def capture(self) -> CaptureState: ...
    def info(self) -> EngineInfo: ...
    def clear_prefix_cache(self) -> int: ...
    def close(self) -> None: ...


class Launch(msgspec.Struct, frozen=True):
    """What the parent tells a new engine process. core: "module:name" of the class to build from the config."""

    address: str
    parent: int
    config: EngineConfig
    core: str = CORE


class EngineLoop:
    """Serves one core over one connected PAIR socket until Shutdown."""

    def __init__(self, core: Core, socket: zmq.Socket[bytes], *, batch_wait_ms: float = 0.0) -> None:
        self._core = core
        self._socket = socket
        self._batch_wait_ms = batch_wait_ms
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode

    def run(self) -> None:
        """Returns on Shutdown. What core.step() raises comes through: the engine cannot go on."""
        while True:
            idle = not self._core.has_work
            if idle:
                self._socket.poll()
            if not self._drain():
                return
            if idle and self._core.has_work and self._batch_wait_ms and not self._gather():
                return
            if self._core.has_work:
                send(self._socket, Outputs(self._core.step()))

    def _gather(self) -> bool:
        """Let requests join the first one's tick for batch_wait_ms. False after Shutdown."""
        deadline = time.monotonic() + self._batch_wait_ms / 1e3
        while (left := deadline - time.monotonic()) > 0:
            if self._socket.poll(max(1, int(left * 1e3))) and not self._drain():
                return False
        return True

    def _drain(self) -> bool:
        """Handle every command that has arrived, without waiting. False after Shutdown."""
        while True:
            try:
                message = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return True
            try:
                command = self._decode(message)
            except msgspec.ValidationError as error:
                self._refuse(message, error)
                continue
            if isinstance(command, Shutdown):
                return False
            self._handle(command)

    def _refuse(self, message: bytes, error: msgspec.ValidationError) -> None:
        """Ends the request that a message was to bring, whose fields are not what they should be; no other hears of it."""
        fields = msgspec.msgpack.decode(message)
        if not isinstance(fields, dict) or not isinstance(fields.get("id"), str):
            raise error
        logger.warning("request %s cannot be read: %s", fields["id"], error)
        refusal = RequestOutput(
            fields["id"], [], finish_reason="error", error=str(error), error_code="bad_request"
        )
        send(self._socket, Outputs([refusal]))

    def _handle(self, command: AddRequest | AbortRequest | Question) -> None:
        match command:
            case AddRequest():
                self._add(command)
            case AbortRequest():
                self._core.abort(command.id)
            case GetStats():
                send(self._socket, StatsReply(command.token, self._core.stats()))
            case GetCapture():
                send(self._socket, CaptureReply(command.token, self._core.capture()))
            case ClearPrefixCache():
                send(self._socket, PrefixCacheCleared(command.token, self._core.clear_prefix_cache()))

    def _add(self, request: AddRequest) -> None:
        """A request that the core refuses, or chokes on, ends alone."""
        try:
            refusal = self._core.add(request)
        except Exception as error:
            logger.exception("request %s could not be added", request.id)
            message = f"the engine could not take this request: {type(error).__name__}: {error}"
            refusal = RequestOutput(request.id, [], finish_reason="error", error=message, error_code="engine")
        if refusal is not None:
            send(self._socket, Outputs([refusal]))


def send(socket: zmq.Socket[bytes], message: FromEngine) -> None:
    """Send, unless it is an empty list of outputs. Never blocks: the queue to the parent has no bound of its own."""
    if not (isinstance(message, Outputs) and not message.items):
        socket.send(_encode(message))


_encode = msgspec.msgpack.Encoder().encode


def main() -> int:
    """Run the process that a Launch on standard input describes; returns its exit code."""
    launch = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Launch)
    bytecode = keep_bytecode(launch.config.cache_dir)
    die_with_parent(launch.parent)
    for terminal_signal in (signal.SIGINT, signal.SIGTERM):
        signal.signal(terminal_signal, signal.SIG_IGN)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, FLUSH_MS)
        socket.connect(launch.address)
        try:
            core = _build(launch, lambda progress: send(socket, progress))
        except Exception as error:
            return _give_up(socket, error)
        send(socket, Ready(core.info()))
        if bytecode is not None:
            bytecode.note()
        try:
            EngineLoop(core, socket, batch_wait_ms=launch.config.batch_wait_ms).run()
        except Exception as error:
            return _give_up(socket, error)
        core.close()
    return 0


def die_with_parent(parent: int) -> None:
    """Make sure that this process ends when `parent` does, however it ends.

    On Linux the kernel sends SIGKILL, which also reaches a process that is stopped or deep in a kernel launch; the
    thread covers other systems, and a parent that was gone before prctl was called.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _build(launch: Launch, progress: Callable[[Progress], None]) -> Core:
    """Import the core's module (torch, mostly) as the first phase, then make the core, which reports its own."""
    progress(Progress("import"))
    began = time.monotonic()
    module, name = launch.core.split(":")
    build = getattr(importlib.import_module(module), name)
    progress(Progress("import", seconds=time.monotonic() - began))
    core: Core = build(launch.config, progress)
    return core


def _give_up(socket: zmq.Socket[bytes], error: Exception) -> int:
    """Say why and leave. A refusal speaks for itself; whatever else it is, somebody has to read its traceback."""
    if isinstance(error, Refusal):
        message = str(error)
        logger.error("the engine stops: %s", message)
    else:
        message = f"{type(error).__name__}: {error} (this is a bug in Helios: its traceback is in the log)"
        logger.error("the engine stops: %s", message, exc_info=error)
    send(socket, Fatal(message, refused=isinstance(error, Refusal)))
    socket.close()
    socket.context.term()  # waits until the message is out, FLUSH_MS at most
    os._exit(1)  # a broken CUDA context can hang an orderly exit


if __name__ == "__main__":
    sys.exit(main())
