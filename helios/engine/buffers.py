"""StepBuffers: a tick's numbers, written on the host into one staging buffer and moved to the device in one copy.

Every bucket has fixed places in the device buffer, so that a captured graph reads what the last fill wrote; what outlives
a tick (page tables, sampling controls, prompts) is kept by seat and written once, at admission.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from capture.ladder import Bucket
from helios.schedule.request import Request
from helios.schedule.tick import Tick

ALIGNMENT = 64  # bytes; kernels compiled for aligned inputs would copy a misaligned one
GREEDY = (0.0, 1.0, 0.0, 0.0)
COLDEST = 1e-6  # below it logits / temperature may overflow, and the draw is greedy in all but name


class StepInputs(NamedTuple):
    """A bucket's inputs on the device, in the order the step takes them. int32 unless said.

    [tokens]: ids; sampled (1 where the id is last_ids[feeds] instead); feeds (seats); positions; slots.
    [rows]: seats; starts (the row's first token); counts; contexts; controls fp32 [rows, 4]: temperature, top_p, min_p,
    top_k; seeds int64. These lie first: behind them an element has 4 bytes in every field, so that no two fields ever lie
    equally many elements from the start, which the compiler would expect of every bucket once it saw it in one.
    """

    seeds: Tensor
    ids: Tensor
    sampled: Tensor
    feeds: Tensor
    positions: Tensor
    slots: Tensor
    seats: Tensor
    starts: Tensor
    counts: Tensor
    contexts: Tensor
    controls: Tensor


TOKEN_FIELDS = ("ids", "sampled", "feeds", "positions", "slots")
FIELD_TYPES = {"controls": torch.float32, "seeds": torch.int64}


@dataclass(frozen=True)
class Place:
    """Where a bucket's inputs lie: device views, and for every staging buffer the same places as numpy arrays."""

    device: StepInputs
    host: tuple[StepInputs, ...]  # numpy arrays under the same names
    nbytes: int


class StepBuffers:
    """Owns staging buffers, the device copy and the tables by seat.

    page_table: int32 [max_rows + 1, table_width] on the device; the last row is the scratch seat of padding rows, whose
    pages are all the scratch page 0. last_ids: int32 [max_rows + 1] on the device, the id each seat sampled last.
    results: int32 [max_rows, 2] on the device, see helios.ops.sampling.sample.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        *,
        max_rows: int,
        max_model_len: int,
        page_size: int,
        device: torch.device,
        seed: int,
    ) -> None:
        self.page_size = page_size
        self.scratch_seat = max_rows
        table_width = math.ceil(max_model_len / page_size)
        pinned = device.type == "cuda"
        stagings = (
            2 if pinned else 1
        )  # with one tick in flight, the copy of the tick before it has been read back
        size = max(_layout(bucket)[1] for bucket in buckets)
        self._staging = [torch.zeros(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(stagings)]
        self._device = torch.zeros(size, dtype=torch.uint8, device=device) if pinned else self._staging[0]
        self._places = {bucket: self._place(bucket) for bucket in buckets}
        self._turn = 0

        self._tables = torch.zeros(max_rows + 1, table_width, dtype=torch.int32, pin_memory=pinned)
        self._table_array = self._tables.numpy()
        self.page_table = self._tables.to(device)
        self.last_ids = torch.zeros(max_rows + 1, dtype=torch.int32, device=device)
        self.results = torch.zeros(max_rows, 2, dtype=torch.int32, device=device)
        self._controls = np.tile(np.array(GREEDY, dtype=np.float32), (max_rows + 1, 1))
        self._seeds = np.zeros(max_rows + 1, dtype=np.int64)
        self._prompts: list[np.ndarray] = [np.zeros(0, dtype=np.int32)] * (max_rows + 1)
        self._random = np.random.default_rng(seed)

    def inputs(self, bucket: Bucket) -> StepInputs:
        """The device views that fill() writes for this bucket: same tensors every time."""
        return self._places[bucket].device

    def admit(self, request: Request) -> None:
        """Writes what the seat keeps for the request's whole life: its pages, controls, seed and prompt."""
        seat, params = request.seat, request.params
        row = self._table_array[seat]
        row[: len(request.pages)] = request.pages
        row[len(request.pages) :] = 0
        # An earlier owner of the seat may have a tick in flight that now sees this row: its id is dropped, and its KV
        # goes to the slots that were computed when that tick was filled.
        self.page_table[seat].copy_(self._tables[seat], non_blocking=True)
        temperature = params.temperature if params.temperature >= COLDEST else 0.0
        self._controls[seat] = (temperature, params.top_p, params.min_p, max(params.top_k, 0))
        self._seeds[seat] = self._random.integers(2**63 - 1) if params.seed is None else params.seed
        self._prompts[seat] = np.array(request.prompt, dtype=np.int32)

    def fill(self, tick: Tick, bucket: Bucket) -> StepInputs:
        """Writes the tick, and padding after it, into the bucket's inputs. Requests in tick.admitted come first."""
        for request in tick.admitted:
            self.admit(request)
        place = self._places[bucket]
        self._turn = (self._turn + 1) % len(self._staging)
        host = place.host[self._turn]
        rows, tokens = tick.rows, tick.tokens

        seats = np.array([request.seat for request in tick.requests], dtype=np.int32)
        first_positions = np.array(tick.starts, dtype=np.int32)
        counts = np.array(tick.counts, dtype=np.int32)
        host.seats[:rows], host.seats[rows:] = seats, self.scratch_seat
        host.counts[:rows], host.counts[rows:] = counts, 0
        np.add(first_positions, counts, out=host.contexts[:rows])
        host.contexts[rows:] = 0
        host.controls[:rows], host.controls[rows:] = self._controls[seats], GREEDY
        host.seeds[:rows], host.seeds[rows:] = self._seeds[seats], 0
        host.starts[rows:] = tokens

        if tokens == rows:
            host.starts[:rows] = np.arange(rows, dtype=np.int32)
            token_seats, positions = seats, first_positions
        else:
            starts = np.cumsum(counts) - counts
            host.starts[:rows] = starts
            token_seats = np.repeat(seats, counts)
            positions = np.arange(tokens, dtype=np.int32) + np.repeat(first_positions - starts, counts)
        host.feeds[:tokens], host.feeds[tokens:] = token_seats, self.scratch_seat
        host.positions[:tokens], host.positions[tokens:] = positions, 0
        pages = self._table_array[token_seats, positions // self.page_size]
        host.slots[:tokens] = pages * self.page_size + positions % self.page_size
        host.slots[tokens:] = 0  # a slot of the scratch page
        host.sampled[:tokens], host.sampled[tokens:] = np.repeat(tick.from_device, tick.counts), 0
        host.ids[:] = 0
        for row in np.flatnonzero(~np.array(tick.from_device, dtype=bool)):
            start, first, count = host.starts[row], tick.starts[row], tick.counts[row]
            host.ids[start : start + count] = self._prompts[seats[row]][first : first + count]
        return self._upload(place)

    def blank(self, bucket: Bucket) -> StepInputs:
        """Fills the bucket with padding only: for warm-up and capture."""
        return self.fill(Tick(number=-1), bucket)

    def _upload(self, place: Place) -> StepInputs:
        staging = self._staging[self._turn]
        if staging is not self._device:
            self._device[: place.nbytes].copy_(staging[: place.nbytes], non_blocking=True)
        return place.device

    def _place(self, bucket: Bucket) -> Place:
        layout, nbytes = _layout(bucket)
        return Place(
            device=_views(self._device, layout),
            host=tuple(
                StepInputs(*(view.numpy() for view in _views(staging, layout))) for staging in self._staging
            ),
            nbytes=nbytes,
        )


def _layout(bucket: Bucket) -> tuple[list[tuple[int, torch.dtype, tuple[int, ...]]], int]:
    """(offset, dtype, shape) of every input in order, and the bytes they span together."""
    layout, offset = [], 0
    for name in StepInputs._fields:
        size = bucket.tokens if name in TOKEN_FIELDS else bucket.rows
        shape = (size, len(GREEDY)) if name == "controls" else (size,)
        dtype = FIELD_TYPES.get(name, torch.int32)
        layout.append((offset, dtype, shape))
        offset += math.ceil(math.prod(shape) * dtype.itemsize / ALIGNMENT) * ALIGNMENT
    return layout, offset


def _views(buffer: Tensor, layout: list[tuple[int, torch.dtype, tuple[int, ...]]]) -> StepInputs:
    return StepInputs(
        *(
            buffer[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for offset, dtype, shape in layout
        )
    )
