"""POST /v1/chat/completions: the one place where a request's way through the server can be read from top to bottom."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from helios.answer import AnswerStream
from helios.engine.messages import AddRequest
from helios.sampling import params_of_choice
from helios.server.answers import Heading, completion, events
from helios.server.app_state import ServerState
from helios.server.body import read_json_body
from helios.server.generation import Generation, Generations
from helios.server.prompts import Job, ModelText, prepare
from helios.server.protocol import ChatRequest
from helios.server.replies import Usage, to_json
from helios.server.streaming import EventStream, unless_gone

log = logging.getLogger(__name__)

# Below this a body is parsed, rendered and tokenised on the event loop: that takes about 2 ms at most, and a thread's
# detour would cost more than it spares.
INLINE_BYTES = 4096


def chat_router(state: ServerState) -> APIRouter:
    router = APIRouter()

    def on_close(generation: Generation) -> None:
        state.metrics.count(generation.outcome, generation.refusal, generation.first_token)
        if state.config.log_prompts and state.text is not None:
            decode, ids = state.text.tokenizer.decode, generation.answer.ids
            log.info("%s prompt: %r", generation.request.id, decode(generation.request.prompt, False))
            log.info("%s answer: %r", generation.request.id, decode(ids, False))

    @router.post("/v1/chat/completions", openapi_extra=_body_schema())
    async def chat_completions(http: Request) -> Response:
        """OpenAI's chat completions, streamed with `stream: true`; answers also carry a `timings` object (seconds).

        - Text parts of a message are joined with nothing between them; a developer message is a system message for
          models that know no developers.
        - A prompt is never cut. One that fills the context is refused, an answer that would pass it is capped, and then
          ends with finish_reason "length".
        - max_completion_tokens wins over max_tokens. Choice i of a seeded request draws with seed + i.
        - Completion tokens are all that the model produced, the one that ended the answer included.
        - A field that would change the answer and is not supported is refused; one that nobody knows is named in the log.
        """
        text = state.ready_text()
        body = await read_json_body(http, state.config.max_body_bytes)
        arrived = time.monotonic()
        info = state.engine.info
        assert info is not None, "an engine that was ready has its info"
        about = (body, text, state.config, state.names, info.max_model_len)
        job = prepare(*about) if len(body) <= INLINE_BYTES else await asyncio.to_thread(prepare, *about)
        heading = Heading(
            f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), job.request.model or state.names[0]
        )
        generations = Generations(
            state.engine,
            [_generation(heading, job, text, i, arrived) for i in range(job.request.n or 1)],
            on_close,
            log_prompts=state.config.log_prompts,
        )
        if job.request.stream:
            pieces = _stream(state, heading, job, generations)
            return EventStream(pieces, log_prompts=state.config.log_prompts)
        answer = await unless_gone(http.receive, _whole(state, heading, job, generations))
        return Response(answer, media_type="application/json")

    return router


def _generation(heading: Heading, job: Job, text: ModelText, index: int, arrived: float) -> Generation:
    params = params_of_choice(job.params, index)
    request = AddRequest(f"{heading.id}-{index}", job.prompt, params, job.request.cache_salt or "")
    answer = AnswerStream(text.tokenizer, params, thinking=job.thinking, tools=job.tools)
    return Generation(index, request, answer, arrived)


async def _whole(state: ServerState, heading: Heading, job: Job, generations: Generations) -> bytes:
    async with state.answering(generations):
        answer = await completion(heading, job, generations)
        state.metrics.count_usage(answer.usage.prompt_tokens, answer.usage.completion_tokens)
        return to_json(answer)


async def _stream(
    state: ServerState, heading: Heading, job: Job, generations: Generations
) -> AsyncGenerator[bytes, None]:
    def on_end(usage: Usage) -> None:
        state.metrics.count_usage(usage.prompt_tokens, usage.completion_tokens)

    async with state.answering(generations), aclosing(events(heading, job, generations, on_end)) as pieces:
        async for piece in pieces:
            yield piece


def _body_schema() -> dict[str, Any]:
    """The body is read and checked by hand (limits, sentences), so OpenAPI is told its shape here."""
    here = "#/paths/~1v1~1chat~1completions/post/requestBody/content/application~1json/schema"
    schema = ChatRequest.model_json_schema(ref_template=f"{here}/$defs/{{model}}")
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
