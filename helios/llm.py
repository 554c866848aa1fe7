"""LLM: the offline API; an engine in this very process, with text going in and text coming out.

Prompts of one call are batched by the same scheduler that serves requests, and results come back in the order of the
prompts.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Self, TypeVar

from tqdm import tqdm

from helios.answer import AnswerStream
from helios.bytecode import keep_bytecode
from helios.completion import Completion, Running
from helios.config import EngineConfig
from helios.engine.messages import AddRequest, Progress
from helios.engine.process.child import Core
from helios.engine.status import EngineStats
from helios.faults import Refusal
from helios.interrupts import uninterrupted
from helios.model.hub import resolve
from helios.options import serving_only
from helios.queries import Message, Params, Prompt, Queries, Query
from helios.sampling import SamplingParams, params_over
from helios.text.defaults import SamplingDefaults
from helios.text.deltas import ContentDelta, Delta
from helios.text.template import ChatTemplate
from helios.text.tokenizer import Tokenizer
from helios.threads import choose_threads

NO_QUEUE_LIMIT = 2**31

P = TypeVar("P", bound=Params)


class LLM:
    """A model, loaded and warm. Use it from one thread; close() it, or use it in a `with` block, to free its memory.

    model: "tiny", a folder or a name on the hub. fields: any of EngineConfig's, such as max_num_seqs=64; what is not
    given comes from HELIOS_* variables and .env, as for the server. What only a server needs is refused here: a list of
    prompts may be of any length, so it has no max_queue_size. on_progress: called with each step of the start-up.
    Raises ConfigError or ModelNotFoundError with a sentence.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        **fields: Any,
    ) -> None:
        for name in serving_only(EngineConfig):
            if name in fields:
                raise TypeError(f"{name} is for a server and means nothing for LLM: leave it out")
        if model is not None:
            fields["model"] = model
        config = EngineConfig.from_env(**fields)
        files = resolve(config.model, config.revision, weights=config.load_format != "dummy")
        self.config = dataclasses.replace(config, revision=files.revision, max_queue_size=NO_QUEUE_LIMIT)
        self.tokenizer = Tokenizer(files.path)
        template = ChatTemplate.from_folder(files.path)
        self.sampling_defaults = SamplingDefaults.from_folder(files.path)
        self.default_params = params_over(self.sampling_defaults, {})
        self._core = _build_core(self.config, on_progress)
        self.info = self._core.info()
        self._queries = Queries(self.tokenizer, template, self.info.max_model_len)
        self._open: dict[str, Running] = {}
        self._numbers = itertools.count()
        self._closed = False

    def generate(
        self,
        prompts: str | Iterable[Prompt],
        params: Params | None = None,
        *,
        detokenize: bool = True,
        progress: bool = False,
    ) -> list[Completion]:
        """Complete one prompt (text) or several (texts, or lists or arrays of ids).

        params: one for all, or one for each; None takes the model's own defaults. With n > 1 each prompt has n
        completions, next to each other in the result: `prompt_index` and `index` say whose they are and which.
        detokenize: False saves the time of turning ids into text, which leaves `text` empty and rules out stop strings.
        progress: show a bar with tokens/s. Raises Refusal (a ValueError) with a sentence, before anything runs, if a
        prompt cannot be taken.
        """
        return self._run(
            self._queries.of_prompts(prompts, self._or_default(params), detokenize=detokenize), progress
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> list[Completion]:
        """Answer one conversation or several, each a list of OpenAI messages ({"role": "user", "content": "Hi"}).

        tools: OpenAI tool objects offered in all of them. chat_template_kwargs: such as {"enable_thinking": False}.
        Otherwise as generate().
        """
        return self._run(
            self._queries.of_conversations(messages, self._or_default(params), tools, chat_template_kwargs),
            progress,
        )

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """The text that completes one prompt, piece by piece. Leaving the loop early aborts the request."""
        deltas = self._stream(self._queries.of_prompt(prompt, self._or_default(params)))
        return (delta.text for delta in deltas if isinstance(delta, ContentDelta))

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[Delta]:
        """The answer to one conversation as deltas of thinking, content and tool calls. Otherwise as stream()."""
        params = self._or_default(params)
        return self._stream(self._queries.of_conversation(messages, params, tools, chat_template_kwargs))

    def stats(self) -> EngineStats:
        """The engine's counters: ticks, tokens, padding, the prefix cache, and what was compiled too late."""
        return self._core.stats()

    def close(self) -> None:
        """Free the engine's memory. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _or_default(self, params: P | None) -> P | SamplingParams:
        return self.default_params if params is None else params

    def _run(self, queries: list[Query], progress: bool) -> list[Completion]:
        """Run all queries to their end, side by side."""
        with self._running(queries) as running, _Bar(len(queries), shown=progress) as bar:
            left = {each.id for each in running}
            while left:
                self._need_work()
                pushed = self._step()
                ended = left.intersection(each.id for each in pushed if each.answer.ended)
                left -= ended
                bar.advance(len(ended), running)
            return [each.completion() for each in running]

    def _stream(self, query: Query) -> Iterator[Delta]:
        with self._running([query]) as (running,):
            answer = running.answer
            while not answer.ended:
                self._need_work()
                self._step()
                yield from answer.take()
            yield from answer.take()  # what another call's steps brought meanwhile
            if answer.finish_reason == "error":
                raise RuntimeError(f"the request ended with an error: {answer.error}")

    @contextmanager
    def _running(self, queries: list[Query]) -> Iterator[list[Running]]:
        """Starts the queries; whatever happens in the block or on the way there, Ctrl-C too, none is open after it."""
        running: list[Running] = []
        try:
            for query in queries:
                with uninterrupted():
                    running.append(self._start(query))
            yield running
        finally:
            with uninterrupted(), ExitStack() as stack:  # all of them, even where the engine fails at one
                for each in reversed(running):
                    stack.callback(self._abort, each)

    def _start(self, query: Query) -> Running:
        if self._closed:
            raise RuntimeError("this LLM is closed: make a new one")
        answer = AnswerStream(
            self.tokenizer,
            query.params,
            thinking=query.thinking,
            tools=query.tools,
            detokenize=query.detokenize,
        )
        running = Running(str(next(self._numbers)), query, answer)
        self._open[running.id] = running
        try:
            refusal = self._core.add(AddRequest(running.id, query.ids, query.params))
        except BaseException:
            self._abort(running)  # it may have come half-way into the engine
            raise
        if refusal is not None:
            del self._open[running.id]
            raise Refusal(
                f"prompt {query.prompt_index} cannot be taken: {refusal.error}", field=refusal.error_field
            )
        return running

    def _step(self) -> list[Running]:
        """One step of the engine; its outputs go to whichever call waits for them. Returns whose they were."""
        pushed = []
        with uninterrupted():
            for output in self._core.step():
                running = self._open.get(output.id)
                if running is not None:
                    running.answer.push(output)
                    pushed.append(running)
                    if running.answer.ended:
                        self._abort(running)
        return pushed

    def _need_work(self) -> None:
        """Raises RuntimeError rather than wait for ever for a request that the engine no longer has."""
        if not self._core.has_work:
            raise RuntimeError("the engine has no work although requests are open: this is a bug in Helios")

    def _abort(self, running: Running) -> None:
        """Let go of a request; the engine has to hear of it only if it has not ended there."""
        if self._open.pop(running.id, None) is not None and not running.answer.engine_ended:
            self._core.abort(running.id)


class _Bar:
    """A progress bar over requests with their tokens/s, or nothing."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._bar = tqdm(total=total, unit="request", disable=not shown)
        self._began = time.monotonic()
        self._next_rate = 0.0

    def advance(self, ended: int, running: list[Running]) -> None:
        if self._bar.disable:
            return
        now = time.monotonic()
        if now >= self._next_rate:
            self._next_rate = now + self._bar.mininterval
            rate = sum(len(each.answer.ids) for each in running) / (now - self._began)
            self._bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
        self._bar.update(ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.close()


def _build_core(config: EngineConfig, progress: Callable[[Progress], None] | None) -> Core:
    """Torch is imported here, unless somebody has done so; then its threads are theirs to choose."""
    if "torch" not in sys.modules:
        choose_threads(config.device)
    report = progress or (lambda step: None)
    report(Progress("import"))
    bytecode = keep_bytecode(config.cache_dir)
    began = time.monotonic()
    from helios.engine.core import EngineCore

    report(Progress("import", seconds=time.monotonic() - began))
    core = EngineCore(config, progress)
    if bytecode is not None:
        bytecode.note()
    return core
