"""A core without a model, for the process around it: every step gives each open request the next whole number.

The model's name chooses how it starts, and the first prompt id what a request does; see `ScriptedCore`.
"""

from __future__ import annotations

import os
import time

from helpers.status import capture_state, engine_info, engine_stats

from helios.engine.messages import Progress, RequestOutput
from helios.engine.status import RequestCounts
from helios.faults import Refusal

REFUSED, CHOKES_ADD, BREAKS_STEP, KILLS_PROCESS = 9001, 9002, 9003, 9004
STEP_SECONDS = 0.002


class ScriptedCore:
    """model "broken": refuses to start. "buggy": raises a ValueError that is no refusal. "slow": takes 30 s."""

    def __init__(self, config, progress) -> None:
        if config.model == "broken":
            raise Refusal("the model folder has no config.json")
        if config.model == "buggy":
            list(zip("ab", "a", strict=True))
        for done in range(1, 4):
            progress(Progress("capture", done=done, total=3))
        progress(Progress("capture", done=3, total=3, seconds=0.5))
        if config.model == "slow":
            time.sleep(30)
        self.open: dict[str, list] = {}
        self.aborts: list[str] = []
        self.steps = 0
        self.config = config

    @property
    def has_work(self) -> bool:
        return bool(self.open)

    def add(self, request):
        first = request.prompt[0]
        if first == REFUSED:
            return RequestOutput(
                request.id, [], finish_reason="error", error="the queue is full", error_code="queue_full"
            )
        if first == CHOKES_ADD:
            raise RuntimeError("cannot take this one")
        self.open[request.id] = [first, 0, request.params.max_tokens]
        return None

    def abort(self, request_id: str) -> None:
        self.aborts.append(request_id)
        self.open.pop(request_id, None)

    def step(self):
        time.sleep(STEP_SECONDS)
        self.steps += 1
        outputs = []
        for request_id, state in list(self.open.items()):
            first, _, most = state
            if first == BREAKS_STEP:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            if first == KILLS_PROCESS:
                os._exit(7)
            state[1] += 1
            done = state[1] == most
            outputs.append(RequestOutput(request_id, [state[1]], finish_reason="length" if done else None))
            if done:
                del self.open[request_id]
        return outputs

    def stats(self):
        """running: open requests. ticks: steps so far."""
        counts = RequestCounts(abort=len(self.aborts))
        return engine_stats(running=len(self.open), ticks=self.steps, requests=counts)

    def capture(self):
        return capture_state()

    def info(self):
        return engine_info(model=self.config.model)

    def clear_prefix_cache(self) -> int:
        return 5

    def close(self) -> None:
        pass
