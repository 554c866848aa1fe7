"""From generations to OpenAI's bodies: a whole completion, or the events of a stream. Both say the same.

Usage and timings are put together here, in one place for both.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from helios.server.generation import Generation, Generations
from helios.server.prompts import Job
from helios.server.replies import (
    DONE,
    Choice,
    Chunk,
    ChunkChoice,
    Completion,
    CompletionDetails,
    Delta,
    FunctionReply,
    MessageReply,
    PromptDetails,
    TimingsReply,
    ToolCallReply,
    Usage,
    event,
)
from helios.text.deltas import Answer, ToolCallDelta


@dataclass(frozen=True)
class Heading:
    """What every body of one answer repeats. created: seconds of Unix time."""

    id: str
    created: int
    model: str


def usage_of(job: Job, generations: Iterable[Generation]) -> Usage:
    generations = list(generations)
    prompt = len(job.prompt)
    completion = sum(len(g.answer.ids) for g in generations)
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        # The choices share one prompt, so what the first found in the cache is what the request found.
        prompt_tokens_details=PromptDetails(cached_tokens=generations[0].answer.cached_tokens),
        completion_tokens_details=CompletionDetails(sum(g.answer.reasoning_ids for g in generations)),
    )


def timings_of(job: Job, generations: Iterable[Generation]) -> TimingsReply:
    """See TimingsReply: of each span the longest that any choice had."""
    generations = list(generations)
    parts = [g.answer.timings for g in generations]
    decode_wall = max(t.decode_wall for t in parts)
    decoded = sum(max(len(g.answer.ids) - 1, 0) for g in generations)
    return TimingsReply(
        tokenize=job.tokenize_seconds,
        queue=max(t.queue for t in parts),
        prefix_lookup=max(t.prefix_lookup for t in parts),
        prefill=max(t.prefill for t in parts),
        decode_wall=decode_wall,
        decode_compute=max(t.decode_compute for t in parts),
        cache_store=max(t.cache_store for t in parts),
        time_to_first_token=max(g.first_token or 0.0 for g in generations),
        tokens_per_second=decoded / decode_wall if decode_wall > 0 else 0.0,
        cache_hit_rate=generations[0].answer.cached_tokens / len(job.prompt),
    )


async def completion(heading: Heading, job: Job, generations: Generations) -> Completion:
    """Waits for all choices. Raises ApiError if one fails."""
    while not generations.ended:
        await generations.news()
    return Completion(
        id=heading.id,
        created=heading.created,
        model=heading.model,
        choices=[_choice(g) for g in generations],
        usage=usage_of(job, generations),
        timings=timings_of(job, generations),
    )


def _choice(generation: Generation) -> Choice:
    said = Answer.of(generation.answer.take())
    message = MessageReply(
        content=said.content if said.content or not said.tool_calls else None,
        reasoning_content=said.reasoning or UNSET,
        tool_calls=[_call(call, in_stream=False) for call in said.tool_calls] or UNSET,
    )
    reason = generation.finish_reason
    assert reason is not None, "only an answer that ended well is put into words"
    return Choice(index=generation.index, message=message, finish_reason=reason)


def _call(call: ToolCallDelta, *, in_stream: bool) -> ToolCallReply:
    return ToolCallReply(
        index=call.index if in_stream else UNSET,
        id=call.id,
        type="function",
        function=FunctionReply(name=call.name, arguments=call.arguments),
    )


async def events(
    heading: Heading, job: Job, generations: Generations, on_end: Callable[[Usage], None]
) -> AsyncGenerator[bytes, None]:
    """Server-sent events, several in one piece where several are due. Raises ApiError if a choice fails.

    on_end: called once, before the last piece, if every choice came to its end.
    """
    options = job.request.stream_options
    with_usage = options is not None and options.include_usage is True
    no_usage = None if with_usage else UNSET
    closed: set[int] = set()

    def chunk(choices: list[ChunkChoice], usage: Usage | UnsetType | None = no_usage) -> Chunk:
        return Chunk(
            id=heading.id, created=heading.created, model=heading.model, choices=choices, usage=usage
        )

    def due() -> Iterator[Chunk]:
        for g in generations:
            if g.index in closed:
                continue
            for delta in _deltas(g):
                yield chunk([ChunkChoice(index=g.index, delta=delta)])
            if g.finish_reason is not None:
                closed.add(g.index)
                yield chunk([ChunkChoice(index=g.index, delta=Delta(), finish_reason=g.finish_reason)])

    # The first outputs are awaited before anything is sent, so that a refusal can still be answered with a status.
    await generations.news()
    greeting = Delta(role="assistant", content="")
    yield b"".join(event(chunk([ChunkChoice(index=g.index, delta=greeting)])) for g in generations)
    while True:
        chunks = list(due())
        last = generations.ended and all(g.index in closed for g in generations)
        if last:
            usage = usage_of(job, generations)
            on_end(usage)
            if with_usage:
                chunks.append(chunk([], usage))
            chunks[-1].timings = timings_of(job, generations)
        if chunks:
            yield b"".join(map(event, chunks)) + (DONE if last else b"")
        if last:
            return
        await generations.news()


def _deltas(generation: Generation) -> Iterator[Delta]:
    said = Answer.of(generation.answer.take())
    if said.reasoning:
        yield Delta(reasoning_content=said.reasoning)
    if said.content:
        yield Delta(content=said.content)
    if said.tool_calls:
        yield Delta(tool_calls=[_call(call, in_stream=True) for call in said.tool_calls])
