"""Queries: what a caller of the offline API asks, checked and tokenised before anything runs.

A prompt may be a text, a list or an array of ids, or a conversation; each becomes one Query for every answer it wants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from helios.faults import Refusal
from helios.sampling import SamplingParams, params_of_choice, plain_int, shown
from helios.schedule.room import room_for_answer
from helios.text.reasoning import Thinking
from helios.text.template import ChatTemplate
from helios.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
Params = SamplingParams | Sequence[SamplingParams]

_BYTES = (bytes, bytearray, memoryview)  # they too are sequences of integers


@dataclass(frozen=True)
class Query:
    """One answer to draw. prompt_index: of its prompt in the call. index: of the answer among the prompt's."""

    text: str | None
    ids: list[int]
    params: SamplingParams
    thinking: Thinking = Thinking.OFF
    tools: bool = False
    detokenize: bool = True
    prompt_index: int = 0
    index: int = 0


class Queries:
    """Makes them for one model. Whatever cannot be asked raises Refusal with a sentence that names it."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, max_model_len: int) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_model_len = max_model_len

    def of_prompts(self, prompts: str | Iterable[Prompt], params: Params, *, detokenize: bool) -> list[Query]:
        """For each prompt, and then for each of its choices."""
        if isinstance(prompts, str):
            prompts = [prompts]
        elif isinstance(prompts, (*_BYTES, Mapping)) or not isinstance(prompts, Iterable):
            raise Refusal(
                f"prompts must be a text or a list of prompts, got a {type(prompts).__name__}",
                field="prompts",
            )
        prompts = list(prompts)
        params = _params_for(prompts, params, "prompts")
        queries = []
        for i, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
            queries += _choices(self._of_prompt(prompt, each, f"prompts[{i}]", detokenize), i)
        return queries

    def of_conversations(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> list[Query]:
        """For each conversation, and then for each of its choices."""
        _check_list(messages, "messages")
        single = bool(messages) and isinstance(messages[0], Mapping)
        conversations = cast("list[Sequence[Message]]", [messages] if single else list(messages))
        params = _params_for(conversations, params, "messages")
        queries = []
        for i, (conversation, each) in enumerate(zip(conversations, params, strict=True)):
            where = "" if single else f"conversation {i}: "
            queries += _choices(self._of_conversation(conversation, each, tools, variables, where), i)
        return queries

    def of_prompt(self, prompt: Prompt, params: SamplingParams) -> Query:
        """For a stream, which is of one answer."""
        (each,) = _params_for([prompt], params, "prompt")
        return _alone(self._of_prompt(prompt, each, "prompt", detokenize=True))

    def of_conversation(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
    ) -> Query:
        """For a stream, which is of one answer."""
        (each,) = _params_for([messages], params, "messages")
        return _alone(self._of_conversation(messages, each, tools, variables, ""))

    def _of_prompt(self, prompt: Prompt, params: SamplingParams, where: str, detokenize: bool) -> Query:
        if params.stop and not detokenize:
            raise Refusal(
                f"{where} has stop strings {params.stop}, which detokenize=False cannot find", field="stop"
            )
        if isinstance(prompt, str):
            query = Query(str(prompt), self._encode(str(prompt), where), params, detokenize=detokenize)
        else:
            query = Query(None, self._ids_of(prompt, where), params, detokenize=detokenize)
        return self._checked(query, where)

    def _of_conversation(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        tools: Sequence[Mapping[str, Any]] | None,
        variables: Mapping[str, Any] | None,
        where: str,
    ) -> Query:
        _check_list(messages, f"{where}messages")
        try:
            text = self._template.render(messages, tools=tools, variables=variables)
        except ValueError as error:
            raise Refusal(f"{where}{error}", field="messages") from error
        ids = self._encode(text, f"{where}messages")
        return self._checked(
            Query(text, ids, params, Thinking.of_prompt(text), bool(tools)), f"{where}messages"
        )

    def _encode(self, text: str, where: str) -> list[int]:
        try:
            return self._tokenizer.encode(text)
        except ValueError as error:
            raise Refusal(f"{where}: {error}", field=_field(where)) from error

    def _ids_of(self, prompt: object, where: str) -> list[int]:
        if not isinstance(prompt, _BYTES) and hasattr(prompt, "tolist"):  # an array or a tensor
            prompt = prompt.tolist()
        if not isinstance(prompt, Sequence) or isinstance(prompt, _BYTES):
            raise Refusal(f"{where} must be text or a list of ids, got {shown(prompt)}", field=_field(where))
        limit = self._tokenizer.vocab_size
        ids = []
        for given in prompt:
            token = given if type(given) is int else plain_int(given)
            if token is None or not 0 <= token < limit:
                raise Refusal(
                    f"{where} must be text or ids from 0 to {limit - 1}, it holds {shown(given)}",
                    field=_field(where),
                )
            ids.append(token)
        return ids

    def _checked(self, query: Query, where: str) -> Query:
        if not query.ids:
            raise Refusal(f"{where} is empty: a prompt needs at least one token", field=_field(where))
        try:
            room_for_answer(len(query.ids), self._max_model_len)
        except Refusal as error:
            raise Refusal(f"{where}: {error}", field=_field(where)) from error
        return query


def _params_for(items: Sequence[object], params: Params, name: str) -> list[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * len(items)
    if not isinstance(params, Sequence) or not all(isinstance(each, SamplingParams) for each in params):
        raise Refusal(
            f"params must be SamplingParams, or a list of them, got {shown(params)}", field="params"
        )
    if len(params) != len(items):
        raise Refusal(
            f"params must be one for all or one for each of the {len(items)} {name}, got {len(params)}",
            field="params",
        )
    return list(params)


def _choices(query: Query, prompt_index: int) -> list[Query]:
    return [
        dataclasses.replace(
            query, params=params_of_choice(query.params, index), prompt_index=prompt_index, index=index
        )
        for index in range(query.params.n)
    ]


def _alone(query: Query) -> Query:
    if query.params.n != 1:
        raise Refusal(f"n must be 1 for a stream, got {query.params.n}", field="n")
    return query


def _check_list(messages: object, where: str) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise Refusal(
            f"{where} must be a list of messages, got a {type(messages).__name__}", field="messages"
        )


def _field(where: str) -> str:
    """ "conversation 3: messages" -> "messages"."""
    return where.rpartition(" ")[2]
