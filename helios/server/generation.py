"""Generation: one engine request on its way back to a client; Generations: the n of one HTTP request, pumped together.

Outputs become text as soon as they arrive, whether or not the client keeps up: a stop string then ends the engine's
work at once, and what a slow client has not taken is held as at most one answer's text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Self

from helios.answer import AnswerStream
from helios.engine.messages import AddRequest, RequestOutput
from helios.server.engine_port import Engine
from helios.server.errors import ApiError, bad_request, log_fault, unavailable
from helios.server.replies import FinishReason

REFUSALS = ("queue_full", "too_long", "bad_request")


class Generation:
    """index: of the choice it becomes. answer: what the engine has said so far, and how it ended.
    error: what the client is told instead when it failed, whether in the engine or on this side of it."""

    def __init__(self, index: int, request: AddRequest, answer: AnswerStream, arrived: float) -> None:
        """arrived: when the request did, on the monotonic clock."""
        self.index = index
        self.request = request
        self.answer = answer
        self.error: ApiError | None = None
        self.outcome = "abort"  # why it ended, in the engine's words; stands if nobody waited for the end
        self.refusal: str | None = None  # the code of an engine that did not accept it
        self._arrived = arrived

    @property
    def ended(self) -> bool:
        return self.error is not None or self.answer.ended

    @property
    def finish_reason(self) -> FinishReason | None:
        """What the client is told, once all of the answer is here; an answer that failed has an error instead."""
        match self.answer.finish_reason:
            case "stop" | "length" | "tool_calls" as reason if self.error is None:
                return reason
        return None

    @property
    def first_token(self) -> float | None:
        """Seconds from the request's arrival to its first token."""
        return None if self.answer.first_token is None else self.answer.first_token - self._arrived

    def accept(self, output: RequestOutput) -> None:
        """Take the engine's next output. What follows the end is ignored."""
        if self.ended:
            return
        self.answer.push(output)
        if self.answer.outcome in ("abort", "error"):
            self.refusal = output.error_code if output.error_code in REFUSALS else None
            self.error = _error_of(output)
        self.outcome = self.answer.outcome or self.outcome

    def fail(self, error: ApiError) -> None:
        """End it with a fault of the server's own."""
        if not self.ended:
            self.error, self.outcome = error, "error"


class Generations:
    """Runs generations inside an `async with`; leaving it early aborts those that have not ended."""

    def __init__(
        self,
        engine: Engine,
        generations: Sequence[Generation],
        on_close: Callable[[Generation], None],
        *,
        log_prompts: bool,
    ) -> None:
        """on_close: told of each generation once, when nothing more will come of it, whatever the reason."""
        self._engine = engine
        self._all = list(generations)
        self._on_close = on_close
        self._log_prompts = log_prompts
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def __iter__(self) -> Iterator[Generation]:
        return iter(self._all)

    @property
    def ended(self) -> bool:
        return all(generation.ended for generation in self._all)

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._pump(generation)) for generation in self._all]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def news(self) -> None:
        """Wait until some generation has moved. Raises the ApiError of one that failed."""
        await self._news.wait()
        self._news.clear()
        for generation in self._all:
            if generation.error is not None:
                raise generation.error

    def fail(self, error: ApiError) -> None:
        """End what is still open with this error."""
        for generation in self._all:
            generation.fail(error)
        self._news.set()

    async def _pump(self, generation: Generation) -> None:
        try:
            async with aclosing(self._engine.generate(generation.request)) as outputs:
                async for output in outputs:
                    generation.accept(output)
                    self._news.set()
                    if generation.ended:
                        break
            generation.fail(_failed())  # nothing, unless the outputs stopped without an end
        except Exception as fault:
            log_fault(f"Request {generation.request.id} failed", fault, with_message=self._log_prompts)
            generation.fail(_failed())
        finally:
            self._on_close(generation)
            self._news.set()


def _failed() -> ApiError:
    return ApiError(500, "The engine failed on this request.", code="engine_error")


def _error_of(output: RequestOutput) -> ApiError:
    """What a client is told about an output that ended with "error" or "abort"."""
    sentence = (output.error or "the engine gave no reason").rstrip(".")
    match output.error_code:
        case "queue_full":
            return unavailable(f"The server is full: {sentence}. Try again soon.", code="queue_full")
        case "too_long":
            return bad_request(f"{sentence}.", param="messages", code="context_length_exceeded")
        case "bad_request":
            return bad_request(f"{sentence}.", param=output.error_field)
    if output.finish_reason == "abort":
        return ApiError(503, "The request was aborted.", code="aborted")
    return ApiError(500, f"The engine failed on this request: {sentence}.", code="engine_error")
