"""LLM: the offline API; an engine in this very process, with text going in and text coming out.

Prompts of one call are batched by the same scheduler that serves requests, and results come back in the order of the
prompts.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from tqdm import tqdm

from helios.bytecode import keep_bytecode
from helios.completion import Completion, Query, Running
from helios.config import EngineConfig
from helios.engine.messages import AddRequest, Progress
from helios.engine.process import Core
from helios.interrupts import uninterrupted
from helios.model.hub import resolve
from helios.sampling import SamplingParams
from helios.text.defaults import SamplingDefaults
from helios.text.deltas import ContentDelta, Delta
from helios.text.reasoning import Thinking
from helios.text.template import ChatTemplate
from helios.text.tokenizer import Tokenizer

SERVING_ONLY = ("max_queue_size", "served_model_name")
NO_QUEUE_LIMIT = 2**31

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


class LLM:
    """A model, loaded and warm. Use it from one thread; close() it, or use it in a `with` block, to free its memory.

    model: "tiny", a folder or a name on the hub. fields: any of EngineConfig's, such as max_num_seqs=64; what is not
    given comes from HELIOS_* variables and .env, as for the server. Only max_queue_size and served_model_name mean nothing
    here: a list of prompts may be of any length. on_progress: called with each step of the start-up.
    Raises ConfigError or ModelNotFoundError with a sentence.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        on_progress: Callable[[Progress], None] | None = None,
        **fields: Any,
    ) -> None:
        for name in SERVING_ONLY:
            if name in fields:
                raise TypeError(f"{name} is for a server and means nothing for LLM: leave it out")
        if model is not None:
            fields["model"] = model
        config = EngineConfig.from_env(**fields)
        files = resolve(config.model, config.revision, weights=config.load_format != "dummy")
        self.config = dataclasses.replace(config, revision=files.revision, max_queue_size=NO_QUEUE_LIMIT)
        self.tokenizer = Tokenizer(files.path)
        self._template = ChatTemplate.from_folder(files.path)
        defaults = SamplingDefaults.from_folder(files.path)
        self.default_params = SamplingParams(
            temperature=defaults.temperature, top_p=defaults.top_p, top_k=defaults.top_k, min_p=defaults.min_p
        )
        self._core = _build_core(self.config, on_progress)
        self.info = self._core.info()
        self._open: dict[str, Running] = {}
        self._numbers = itertools.count()
        self._closed = False

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        detokenize: bool = True,
        progress: bool = False,
    ) -> list[Completion]:
        """Complete one prompt (text) or several (texts or lists of ids).

        params: one for all, or one for each; None takes the model's own defaults. detokenize: False saves the time of
        turning ids into text, which leaves `text` empty and rules out stop strings. progress: show a bar with tokens/s.
        Raises ValueError with a sentence, before anything runs, if a prompt cannot be taken.
        """
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        params = self._params_for(prompts, params, "prompts")
        queries = [
            self._query(*each, f"prompts[{i}]", detokenize)
            for i, each in enumerate(zip(prompts, params, strict=True))
        ]
        return self._run(queries, progress)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        progress: bool = False,
    ) -> list[Completion]:
        """Answer one conversation or several, each a list of OpenAI messages ({"role": "user", "content": "Hi"}).

        tools: OpenAI tool objects offered in all of them. chat_template_kwargs: such as {"enable_thinking": False}.
        Otherwise as generate().
        """
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations = [messages] if single else list(messages)
        params = self._params_for(conversations, params, "messages")
        queries = [
            self._chat_query(
                conversation, each, tools, chat_template_kwargs, "" if single else f"conversation {i}: "
            )
            for i, (conversation, each) in enumerate(zip(conversations, params, strict=True))
        ]
        return self._run(queries, progress)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """The text that completes one prompt, piece by piece. Leaving the loop early aborts the request."""
        (params,) = self._params_for([prompt], params, "prompt")
        deltas = self._stream(self._query(prompt, params, "prompt"))
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
        (params,) = self._params_for([messages], params, "messages")
        return self._stream(self._chat_query(messages, params, tools, chat_template_kwargs, ""))

    def stats(self) -> dict[str, Any]:
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

    def _params_for(
        self, items: Sequence[Any], params: SamplingParams | Sequence[SamplingParams] | None, name: str
    ) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.default_params] * len(items)
        if len(params) != len(items):
            raise ValueError(
                f"params must be one for all or one for each of the {len(items)} {name}, got {len(params)}"
            )
        return list(params)

    def _query(self, prompt: Prompt, params: SamplingParams, where: str, detokenize: bool = True) -> Query:
        if isinstance(prompt, str):
            query = Query(prompt, self._encode(prompt, where), params, detokenize=detokenize)
            return self._checked(query, where)
        if not isinstance(prompt, Sequence):
            raise ValueError(f"{where} must be text or a list of ids, got {prompt!r}")
        ids = list(prompt)
        for token in ids:
            if type(token) is not int or not 0 <= token < self.tokenizer.vocab_size:
                raise ValueError(
                    f"{where} must be text or ids from 0 to {self.tokenizer.vocab_size - 1}, it holds {token!r}"
                )
        return self._checked(Query(None, ids, params, detokenize=detokenize), where)

    def _chat_query(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
        where: str,
    ) -> Query:
        try:
            text = self._template.render(messages, tools=tools, variables=variables)
        except ValueError as error:
            raise ValueError(f"{where}{error}") from error
        query = Query(
            text, self._encode(text, f"{where}messages"), params, Thinking.of_prompt(text), bool(tools)
        )
        return self._checked(query, f"{where}messages")

    def _encode(self, text: str, where: str) -> list[int]:
        try:
            return self.tokenizer.encode(text)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error

    def _checked(self, query: Query, where: str) -> Query:
        if not isinstance(query.params, SamplingParams):
            raise ValueError(f"{where} needs SamplingParams, got a {type(query.params).__name__}")
        if query.params.stop and not query.detokenize:
            raise ValueError(
                f"{where} has stop strings {query.params.stop}, which detokenize=False cannot find"
            )
        limit = self.info["max_model_len"]
        if not query.ids:
            raise ValueError(f"{where} is empty: a prompt needs at least one token")
        if len(query.ids) >= limit:
            raise ValueError(
                f"{where} has {len(query.ids)} tokens, and max_model_len={limit} leaves room for at most {limit - 1}"
            )
        return query

    def _run(self, queries: list[Query], progress: bool) -> list[Completion]:
        """Run all queries to their end, side by side; leaving early (Ctrl-C) aborts what is open."""
        running: list[Running] = []
        try:
            for position, query in enumerate(queries):
                running.append(self._start(query))
                refusal = running[-1].last
                if refusal is not None:
                    raise ValueError(f"prompt {position} cannot be taken: {refusal.error}")
            left = {each.id for each in running}
            with _Bar(len(running), shown=progress) as bar:
                while left:
                    self._need_work()
                    pushed = self._step()
                    ended = left.intersection(each.id for each in pushed if each.ended)
                    left -= ended
                    bar.advance(len(ended), running)
            return [each.completion() for each in running]
        finally:
            for each in running:
                self._abort(each)

    def _stream(self, query: Query) -> Iterator[Delta]:
        running = self._start(query)
        try:
            while not running.ended:
                self._need_work()
                self._step()
                yield from running.take()
            yield from running.take()  # what another call's steps brought meanwhile
            if running.last is not None and running.last.finish_reason == "error":
                raise RuntimeError(f"the request ended with an error: {running.last.error}")
        finally:
            self._abort(running)

    def _start(self, query: Query) -> Running:
        if self._closed:
            raise RuntimeError("this LLM is closed: make a new one")
        running = Running(str(next(self._numbers)), query, self.tokenizer)
        refusal = self._core.add(AddRequest(running.id, query.ids, query.params))
        if refusal is None:
            self._open[running.id] = running
        else:
            running.push(refusal)
        return running

    def _step(self) -> list[Running]:
        """One step of the engine; its outputs go to whichever call waits for them. Returns whose they were."""
        pushed = []
        with uninterrupted():
            for output in self._core.step():
                running = self._open.get(output.id)
                if running is not None:
                    running.push(output)
                    pushed.append(running)
                    if running.ended:
                        self._abort(running)
        return pushed

    def _need_work(self) -> None:
        """Raises RuntimeError rather than wait for ever for a request that the engine no longer has."""
        if not self._core.has_work:
            raise RuntimeError("the engine has no work although requests are open: this is a bug in Helios")

    def _abort(self, running: Running) -> None:
        """Let go of a request; the engine has to hear of it only if it has not ended there."""
        if self._open.pop(running.id, None) is not None and running.last is None:
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
            rate = sum(len(each.ids) for each in running) / (now - self._began)
            self._bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
        self._bar.update(ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.close()


def _build_core(config: EngineConfig, progress: Callable[[Progress], None] | None) -> Core:
    """Torch is imported here, with one OpenMP thread on CPU unless the user chose (see engine.client)."""
    if "torch" not in sys.modules and not config.device.startswith("cuda"):
        os.environ.setdefault("OMP_NUM_THREADS", "1")
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
