"""EngineClient: the asyncio side of the engine process; it starts it, talks to it, and notices when it is gone.

Whatever happens to the process, every open request gets a last RequestOutput and no call waits for ever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from typing import Literal, TypeVar

import msgspec
import zmq
import zmq.asyncio

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
    Reply,
    RequestOutput,
    Shutdown,
    StatsReply,
    ToEngine,
)
from helios.engine.process.child import CORE, Launch
from helios.engine.process.mailbox import Mailbox
from helios.engine.status import CaptureState, EngineInfo, EngineStats, StartupProgress
from helios.threads import choose_threads

logger = logging.getLogger("helios.engine")

State = Literal["starting", "ready", "dead"]
R = TypeVar("R", bound=Reply)
CLEAR_TIMEOUT = 10.0
EXIT_TIMEOUT = 10.0
LAST_WORDS_SECONDS = 0.1  # what a process sent before it ended is read within this
FATAL_EXIT_SECONDS = 5.0


class EngineDeadError(RuntimeError):
    """There is no engine to ask; the message says why."""


class EngineClient:
    """Owns one engine process. Make it, `await start()`, then `await wait_ready()`; all on one event loop.

    on_progress: called with every Progress of the start-up. core: "module:name" of the engine class, for tests.
    On Linux the process also ends with the thread that called start(), so that has to be a thread that stays.
    """

    def __init__(
        self, config: EngineConfig, *, on_progress: Callable[[Progress], None] | None = None, core: str = CORE
    ) -> None:
        self._config = config
        self._core = core
        self._on_progress = on_progress
        self._state: State = "starting"
        self._dead_reason: str | None = None
        self.refused = False  # whether it died of what a person can put right
        self._info: EngineInfo | None = None
        self._progress = StartupProgress()
        self._mailboxes: dict[str, Mailbox] = {}
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._next_token = 0
        self._settled = asyncio.Event()  # ready or dead
        self._process: asyncio.subprocess.Process | None = None
        self._folder: str | None = None
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def state(self) -> State:
        return self._state

    @property
    def progress(self) -> StartupProgress:
        return self._progress

    @property
    def info(self) -> EngineInfo | None:
        """None until the engine is ready."""
        return self._info

    @property
    def dead_reason(self) -> str | None:
        return self._dead_reason

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Launch the process and return at once; `state` and `progress` tell how it goes on."""
        if self._process is not None:
            raise RuntimeError("this engine client was started before: make a new one")
        self._folder = tempfile.mkdtemp(prefix="helios-")  # only this user may enter it, and so the socket
        address = f"ipc://{self._folder}/engine"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(address)
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "helios.engine.process.child"),
            stdin=asyncio.subprocess.PIPE,
            env=engine_environment(self._config),
            start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
        )
        launch = Launch(address, parent=os.getpid(), config=self._config, core=self._core)
        assert process.stdin is not None, "it was asked for as a pipe"
        process.stdin.write(msgspec.msgpack.encode(launch))
        process.stdin.close()
        self._tasks = [
            asyncio.create_task(self._read(self._socket)),
            asyncio.create_task(self._watch(process)),
        ]

    async def wait_ready(self) -> EngineInfo:
        """The engine's info once it is warm. Raises EngineDeadError if it never got there."""
        await self._settled.wait()
        if self._info is None or self._state == "dead":
            raise EngineDeadError(self._dead_reason)
        return self._info

    async def generate(self, request: AddRequest) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request, the last with a finish_reason; what a slow reader has not taken is merged into one.

        Closing the iterator before its end aborts the request. A request that the engine cannot take, or loses, ends
        with finish_reason "error" and error_code "engine". Raises ValueError if a request of that id is open.
        """
        if self._state != "ready":
            yield _lost(request.id, self._why_not())
            return
        if request.id in self._mailboxes:
            raise ValueError(
                f"a request with id {request.id!r} is open already: every open request needs its own id"
            )
        mailbox = self._mailboxes[request.id] = Mailbox(request.id)
        self._send(request)
        try:
            while True:
                output = await mailbox.get()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._forget(request.id)

    async def abort(self, request_id: str) -> None:
        """End an open request with finish_reason "abort"; an unknown id is one that has ended, which is fine."""
        mailbox = self._mailboxes.get(request_id)
        if mailbox is not None and not mailbox.finished:
            self._forget(request_id)
            mailbox.put(RequestOutput(request_id, [], finish_reason="abort"))

    async def stats(self, timeout: float = 5.0) -> EngineStats:
        """Raises TimeoutError if the process does not answer in time, EngineDeadError if there is none."""
        return (await self._ask(GetStats, StatsReply, timeout)).stats

    async def capture(self, timeout: float = 5.0) -> CaptureState:
        """Raises as stats() does."""
        return (await self._ask(GetCapture, CaptureReply, timeout)).capture

    async def clear_prefix_cache(self) -> int:
        """Forget all unused cached prefixes; returns the pages that freed. Raises as stats() does."""
        return (await self._ask(ClearPrefixCache, PrefixCacheCleared, CLEAR_TIMEOUT)).pages

    async def shutdown(self) -> None:
        """End the process, at once if it is still starting, and free what belongs to it. Open requests end with an error."""
        if self._process is not None and self._process.returncode is None:
            was_ready = self._info is not None and self._state != "dead"
            self._die("the engine has been shut down")
            if was_ready:
                self._send(Shutdown())
            else:
                self._kill()
            try:
                await asyncio.wait_for(self._process.wait(), EXIT_TIMEOUT)
            except TimeoutError:
                logger.warning(
                    "the engine process %d did not leave within %g s and is killed", self.pid, EXIT_TIMEOUT
                )
                self._kill()
                await self._process.wait()
        self._die("the engine has been shut down")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = self._socket = None
        self._remove_folder()

    def _send(self, command: ToEngine) -> None:
        """Queue a command. ZeroMQ takes it at once, since the queue has no bound; a dead engine needs none."""
        if self._socket is not None:
            self._socket.send(msgspec.msgpack.encode(command))

    async def _ask(self, question: type[Question], kind: type[R], timeout: float) -> R:
        """The reply, of that kind, to a question of this one; a token in both says that they belong together."""
        if self._state == "dead":
            raise EngineDeadError(self._dead_reason)
        self._next_token += 1
        token = self._next_token
        waiting = self._replies[token] = asyncio.get_running_loop().create_future()
        self._send(question(token))
        try:
            reply = await asyncio.wait_for(waiting, timeout)
        except TimeoutError:
            raise TimeoutError(f"the engine process {self.pid} did not answer within {timeout:g} s") from None
        finally:
            del self._replies[token]
        if not isinstance(reply, kind):
            raise TypeError(f"{question.__name__} was answered with {type(reply).__name__}")
        return reply

    def _forget(self, request_id: str) -> None:
        """Close a request's mailbox; the engine has to hear of it only if it has not ended there."""
        mailbox = self._mailboxes.pop(request_id, None)
        if mailbox is not None and not mailbox.finished:
            self._send(AbortRequest(request_id))

    async def _read(self, socket: zmq.asyncio.Socket) -> None:
        """Take in what the engine says until cancelled."""
        decode = msgspec.msgpack.Decoder(FromEngine).decode
        while True:
            self._receive(decode(await socket.recv()))

    def _receive(self, message: FromEngine) -> None:
        match message:
            case Outputs(items=items):
                for output in items:
                    if (mailbox := self._mailboxes.get(output.id)) is not None:
                        mailbox.put(output)
            case StatsReply() | CaptureReply() | PrefixCacheCleared():
                if (waiting := self._replies.get(message.token)) is not None and not waiting.done():
                    waiting.set_result(message)
            case Progress():
                self._remove_folder()  # connected: the path has served its purpose, and a killed parent leaves none
                self._note(message)
            case Ready(info=info):
                self._info = info
                if self._state == "starting":
                    self._state = "ready"
                self._settled.set()
            case Fatal(message=reason, refused=refused):
                self.refused = refused
                self._die(reason)
                asyncio.get_running_loop().call_later(FATAL_EXIT_SECONDS, self._kill)

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Declare the engine dead when its process ends, with its own last words if there were any."""
        code = await process.wait()
        await asyncio.sleep(LAST_WORDS_SECONDS)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        self._die(f"the engine process {how}")

    def _die(self, reason: str) -> None:
        """Become dead, once: every open request and question hears why."""
        if self._state == "dead":
            return
        self._state, self._dead_reason = "dead", reason
        self._settled.set()
        for mailbox in self._mailboxes.values():
            if not mailbox.finished:
                mailbox.put(_lost(mailbox.id, reason))
        for waiting in self._replies.values():
            if not waiting.done():
                waiting.set_exception(EngineDeadError(reason))

    def _note(self, step: Progress) -> None:
        seconds = self._progress.seconds
        if step.seconds is not None:
            seconds = seconds | {step.phase: step.seconds}
        self._progress = StartupProgress(step.phase, step.done, step.total, seconds)
        if self._on_progress is not None:
            self._on_progress(step)

    def _why_not(self) -> str:
        return {
            "starting": "the engine is still starting",
            "dead": self._dead_reason or "the engine is gone",
        }[self._state]

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _lost(request_id: str, reason: str) -> RequestOutput:
    return RequestOutput(request_id, [], finish_reason="error", error=reason, error_code="engine")


def engine_environment(config: EngineConfig) -> dict[str, str]:
    """The engine's environment: this process's import path, and the rule on threads."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    choose_threads(config.device, environment)
    return environment
