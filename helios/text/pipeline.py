"""OutputPipeline: the way of one answer from token ids to what a client sees, streamed or not.

ids -> characters -> thinking parted from content -> tool calls parted from content -> stop strings on content. Stop
strings come last, so that text held back for one can never hide or split a tag, and so that they neither cut
thinking short nor break a call in two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from helios.sampling import SamplingParams
from helios.text.deltas import ContentDelta, Delta, ReasoningDelta, StopHit, ToolCallDelta
from helios.text.detokenize import IncrementalDetokenizer
from helios.text.reasoning import ReasoningParser, Thinking
from helios.text.stops import StopStrings
from helios.text.tokenizer import Tokenizer
from helios.text.tools import ToolCallParser


class OutputPipeline:
    """Feed it every id of one answer, in any batches, then finish it once.

        pipeline = OutputPipeline(tokenizer, params, thinking=Thinking.of_prompt(prompt), tools=bool(tools))
        deltas = pipeline.push(output.ids, output.stop_id)
        if pipeline.stopped_by is not None: abort the request
        ...
        deltas += pipeline.finish(output.finish_reason)

    thinking: whether the answer can begin with thinking; OFF leaves the text whole. tools: whether the request offered
    tools; without them `<tool_call>` is text like any other.
    ids_consumed: ids read so far, the stopping id included; it stands still once a stop string is complete, so it is
    the number of completion tokens. reasoning_ids: how many of them were thinking, tags included.
    stopped_by: the stop string that ended the answer, or None. One that is complete before min_tokens ids is text.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, *, thinking: Thinking, tools: bool
    ) -> None:
        self.ids_consumed = 0
        self.reasoning_ids = 0
        self.stopped_by: str | None = None
        self._show_stop_id = not params.skip_special_tokens
        self._detokenizer = IncrementalDetokenizer(tokenizer, params.skip_special_tokens)
        self._reasoning = ReasoningParser(thinking)
        self._tools = ToolCallParser() if tools else None
        self._stops = StopStrings(params.stop)
        self._min_tokens = params.min_tokens
        self._newlines = 0  # at the end of the content so far, where a tool call may follow
        self._after_call = False

    def push(self, ids: Sequence[int], stop_id: int | None = None) -> list[Delta]:
        """Takes more ids and returns what they complete, neighbours of one kind joined.

        stop_id: set when the last of `ids` is the id that ended the request; it is counted, and shown only where
        skip_special_tokens is off. After a stop string everything is ignored.
        """
        deltas: list[Delta] = []
        for position, token in enumerate(ids):
            if self.stopped_by is not None:
                break
            self.ids_consumed += 1
            ends = stop_id is not None and position == len(ids) - 1
            was_thinking = self._reasoning.thinking
            if not ends or self._show_stop_id:
                self._text(self._detokenizer.push((token,)), deltas)
            if was_thinking or self._reasoning.thinking:
                self.reasoning_ids = self.ids_consumed
        return _joined(deltas)

    def finish(self, reason: str) -> list[Delta]:
        """The last deltas. reason: the engine's, "stop", "length", "abort" or "error"."""
        deltas: list[Delta] = []
        self._text(self._detokenizer.finish(), deltas)
        reasoning, content = self._reasoning.finish()
        if reasoning:
            deltas.append(ReasoningDelta(reasoning))
        self._content(content, deltas)
        for piece in self._tools.finish(reason) if self._tools else ():
            self._piece(piece, deltas)
        if self.stopped_by is None:
            self._show(self._stops.finish(), deltas)
        self._end_newlines(deltas)
        return _joined(deltas)

    def finish_reason(self, reason: str) -> str:
        """The reason a client is told: "stop" after a stop string, "tool_calls" if the model ended after calling."""
        if self.stopped_by is not None:
            reason = "stop"
        called = self._tools is not None and self._tools.count > 0
        return "tool_calls" if called and reason == "stop" else reason

    def _text(self, text: str, deltas: list[Delta]) -> None:
        if not text:
            return
        reasoning, content = self._reasoning.push(text)
        if reasoning:
            deltas.append(ReasoningDelta(reasoning))
        self._content(content, deltas)

    def _content(self, text: str, deltas: list[Delta]) -> None:
        if not text:
            return
        for piece in self._tools.push(text) if self._tools else (text,):
            self._piece(piece, deltas)

    def _piece(self, piece: str | ToolCallDelta, deltas: list[Delta]) -> None:
        if self.stopped_by is not None:
            return
        if isinstance(piece, ToolCallDelta):
            # A stop string does not reach across a call: what was held back before it is text.
            self._show(self._stops.finish(), deltas)
            self._newlines, self._after_call = 0, True
            deltas.append(piece)
            return
        shown, self.stopped_by = self._stops.push(piece, armed=self.ids_consumed >= self._min_tokens)
        self._show(shown, deltas)
        if self.stopped_by is not None:
            self._end_newlines(deltas)
            deltas.append(StopHit(self.stopped_by, self.ids_consumed))

    def _show(self, text: str, deltas: list[Delta]) -> None:
        """Passes content on. Where calls may follow, newlines at its end wait: next to a call they belong to the format."""
        if not text:
            return
        if self._tools is None:
            deltas.append(ContentDelta(text))
            return
        body = text.rstrip("\n")
        if body:
            deltas.append(ContentDelta("\n" * self._newlines + body))
            self._newlines, self._after_call = 0, False
        self._newlines += len(text) - len(body)

    def _end_newlines(self, deltas: list[Delta]) -> None:
        """No call can follow any more: waiting newlines are text, unless a call stands right before them."""
        if self._newlines and not self._after_call:
            deltas.append(ContentDelta("\n" * self._newlines))
        self._newlines = 0


def _joined(deltas: Iterable[Delta]) -> list[Delta]:
    """Neighbouring text of one kind made one delta."""
    joined: list[Delta] = []
    for kind, group in groupby(deltas, type):
        run = list(group)
        texts = [delta.text for delta in run if isinstance(delta, ReasoningDelta | ContentDelta)]
        if len(texts) < 2:
            joined += run
        elif kind is ContentDelta:
            joined.append(ContentDelta("".join(texts)))
        else:
            joined.append(ReasoningDelta("".join(texts)))
    return joined
