"""StepBuffers: a tick's numbers, written on the host into one staging buffer and moved to the device in one copy.

What outlives a tick (page tables, sampling controls, biases, counts) is kept by seat and written once, at admission.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from capture.ladder import Bucket
from helios.engine.state import ROWS, TOKENS, StepState, host_views, padding_number, record_views
from helios.sampler.sampler import seat_values, table_rows
from helios.sampler.variant import Variant, variant_of
from helios.schedule.request import Request
from helios.schedule.tick import Admitted, Appended, Tick


class StepBuffers:
    """The host's side of a StepState: staging buffers, and mirrors of the seats' records.

    There are two of each on a GPU: with one tick in flight, the copies of the tick before it have been made.
    """

    def __init__(self, state: StepState, buckets: Sequence[Bucket], *, page_size: int, seed: int) -> None:
        layout = state.layout
        self.state = state
        self.page_size = page_size
        self._layout = layout
        self._pinned = state.device.type == "cuda"
        turns = range(2 if self._pinned else 1)
        stagings = [_host_twin(state.inputs, self._pinned) for _ in turns]
        self._records = [_host_twin(state.records, self._pinned) for _ in turns]
        self._rows = [host_views(layout.rows, staging) for staging in stagings]
        self._tokens = [
            {bucket: host_views(layout.tokens(bucket), staging) for bucket in buckets} for staging in stagings
        ]
        sizes = {bucket: layout.input_bytes(bucket) for bucket in buckets}
        self._copies = [
            {bucket: (state.inputs[:size], staging[:size]) for bucket, size in sizes.items()}
            for staging in stagings
        ]  # to where, and from where
        self._by_seat = [record_views(layout, records) for records in self._records]
        self._turn = 0
        seats = layout.sizes["seats"]
        self._prompts: list[np.ndarray] = [np.zeros(0, dtype=np.int32)] * seats
        self._variants = np.zeros(seats, dtype=np.int8)  # what each seat's request asks of the sampler
        self._padding = {entry.name: padding_number(entry, layout) for entry in (*ROWS, *TOKENS)}
        self._random = np.random.default_rng(seed)

    def fill(self, tick: Tick, bucket: Bucket, rows: int) -> Variant:
        """Writes the tick, and padding after it, and sends it to the device; what changed by seat goes first.

        rows: of the inputs that will be read; at least the bucket's. Returns the variant of the sampler that the tick needs.
        """
        self._turn = (self._turn + 1) % len(self._records)
        if tick.admitted:
            self.admit(tick.admitted)
        for appended in tick.appended:
            self._append(appended)
        seats = np.array([request.seat for request in tick.requests], dtype=np.int32)
        self._fill_rows(tick, seats, rows)
        self._fill_tokens(tick, seats, self._tokens[self._turn][bucket])
        target, source = self._copies[self._turn][bucket]
        target.copy_(source, non_blocking=True)
        return Variant(int(self._variants[seats].max(initial=0)))

    def blank(self, bucket: Bucket, rows: int) -> None:
        """Fills the bucket with padding only: for warm-up and capture."""
        self.fill(Tick(number=-1), bucket, rows)

    def _fill_rows(self, tick: Tick, seats: np.ndarray, rows: int) -> None:
        real, host = tick.rows, self._rows[self._turn]
        query_lens = np.array(tick.query_lens, dtype=np.int32)
        for name, values, padding in (
            ("seats", seats, self._padding["seats"]),
            ("query_start_loc", query_lens.cumsum() - query_lens, tick.tokens),
            ("query_lens", query_lens, 0),
            ("num_outputs", tick.num_outputs, 0),
        ):
            host[name][:real], host[name][real:rows] = values, padding

    def _fill_tokens(self, tick: Tick, seats: np.ndarray, host: dict[str, np.ndarray]) -> None:
        rows, tokens = tick.rows, tick.tokens
        starts = self._rows[self._turn]["query_start_loc"]
        decoding = tick.from_device.count(True)  # the first rows
        decoded = tokens if decoding == rows else starts[decoding]  # the first tokens
        if tokens == rows:  # one token a row
            host["token_seats"][:tokens], host["token_offsets"][:tokens] = seats, 0
        else:
            within = np.arange(tokens, dtype=np.int32) - starts[:rows].repeat(tick.query_lens)
            host["token_seats"][:tokens], host["token_offsets"][:tokens] = (
                seats.repeat(tick.query_lens),
                within,
            )
        host["from_device"][:decoded], host["from_device"][decoded:tokens] = 1, 0
        host["input_ids"][:decoded] = 0
        for row in range(decoding, rows):
            start, first, count = starts[row], tick.num_computed_tokens[row], tick.query_lens[row]
            host["input_ids"][start : start + count] = self._prompts[seats[row]][first : first + count]
        for name, array in host.items():
            array[tokens:] = self._padding[name]

    def admit(self, admitted: Sequence[Admitted]) -> None:
        """Writes what the seats keep for their requests' whole lives; neighbouring seats go to the device in one copy."""
        host = self._by_seat[self._turn]
        for request, pages, num_computed_tokens in admitted:
            seat, params = request.seat, request.params
            host["page_table"][seat, : len(pages)] = pages
            host["page_table"][seat, len(pages) :] = 0
            host["num_computed_tokens"][seat] = num_computed_tokens
            seed = int(self._random.integers(2**63 - 1)) if params.seed is None else params.seed
            for name, value in seat_values(params, request.stop_ids, seed).items():
                host[name][seat] = value
            self._prompts[seat] = np.array(request.prompt, dtype=np.int32)
            self._variants[seat] = variant_of(params)
            self._write_tables(request)
        seats = sorted({request.seat for request, _, _ in admitted})
        first = 0
        for i in range(1, len(seats) + 1):
            if i == len(seats) or seats[i] != seats[i - 1] + 1:
                begin, end = seats[first], seats[i - 1] + 1
                mirror = self._records[self._turn][begin:end]
                self.state.records[begin:end].copy_(mirror, non_blocking=True)
                first = i

    def _append(self, appended: Appended) -> None:
        """Adds to a running request's page table."""
        seat, pages = appended.request.seat, appended.pages
        entries = torch.tensor(pages, dtype=torch.int32, pin_memory=self._pinned)
        row = self.state["page_table"][seat, appended.first : appended.first + len(pages)]
        row.copy_(entries, non_blocking=True)

    def _write_tables(self, request: Request) -> None:
        """Writes the beginning of the seat's rows in the tables that this request needs, and in no other."""
        params, vocab = request.params, self._layout.sizes["vocab"]
        for name, values in table_rows(params, request.prompt, request.stop_ids, vocab).items():
            if values is None:
                self.state[name][request.seat].zero_()
                continue
            row = torch.from_numpy(values)
            # Pinned memory of the caching allocator is not handed out again before the copy is made.
            row = row.pin_memory() if self._pinned else row
            self.state[name][request.seat, : len(values)].copy_(row, non_blocking=True)


def _host_twin(tensor: Tensor, pinned: bool) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=pinned)
