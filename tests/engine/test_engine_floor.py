"""The floor of a step, against counts made another way: PyTorch's own flop counter, and the sizes of real tensors."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from capture.ladder import Bucket
from helios.engine.proof.floor import Rewind, Row, measured_rows, measured_tick, step_work
from helios.model import layers


def test_flops_of_the_products_are_those_that_pytorch_counts(make_core, monkeypatch):
    core = make_core(decode_buckets=(1, 4), packed_buckets=(64,))
    runner, model = core.started.runner, core.started.model
    rows = [Row(1, 40)] * 4
    bucket = Bucket("decode", 4, 4)
    tick = measured_tick(rows, runner.buffers, core.started.memory.num_pages)
    runner.buffers.fill(tick, bucket, bucket.rows)
    # Not behind custom ops, where the counter sees nothing.
    monkeypatch.setattr(layers, "linear", lambda x, weight, backend: F.linear(x, weight))
    monkeypatch.setattr(layers, "linear_into", lambda x, weight, out, backend: out.copy_(F.linear(x, weight)))
    with FlopCounterMode(display=False) as counter:
        runner.run_eagerly(bucket)
    attention = 4 * model.num_heads * model.head_dim * model.num_layers * sum(row.context for row in rows)
    assert step_work(model, rows, 4).flops - attention == counter.get_total_flops()


def test_a_prompt_sees_half_of_its_square(make_core):
    model = make_core().started.model
    heads = model.num_heads * model.head_dim * model.num_layers
    whole, context = step_work(model, [Row(8, 8)], 4).flops, step_work(model, [Row(8, 108)], 4).flops
    assert context - whole == 4 * heads * 8 * 100
    one_by_one = sum(step_work(model, [Row(1, n)], 4).flops for n in range(1, 9))
    head = 2 * model.hidden_size * model.vocab_size
    assert one_by_one - 7 * head == whole


def test_bytes_of_a_decode_step_are_weights_and_cache(make_core):
    core = make_core()
    model, network = core.started.model, core.started.runner.step.function.decoder
    weights = {
        name: tensor.nbytes
        for name, tensor in network.named_parameters()
        if "norm" not in name and name != "embed.weight"
    }
    read = sum(weights.values())
    if model.tie_word_embeddings:
        read += network.embed.weight.nbytes
    page_bytes = core.started.memory.pool // core.started.memory.num_pages
    token_bytes = page_bytes // core.started.sizes.page_size
    short, long = (step_work(model, [Row(1, context)], 4).bytes for context in (100, 1100))
    assert long - short == 1000 * token_bytes
    rest = short - read - 101 * token_bytes
    assert 0 < rest < read  # what is handed from product to product, and the logits


@pytest.mark.parametrize(
    "bucket",
    [Bucket("decode", 8, 8), Bucket("packed", 100, 8), Bucket("packed", 4096, 256), Bucket("packed", 9, 1)],
)
def test_a_bucket_is_timed_full(bucket):
    rows = measured_rows(bucket, max_model_len=4096)
    assert sum(row.count for row in rows) == bucket.tokens
    assert len(rows) <= bucket.rows
    assert all(row.count <= row.context <= 4095 for row in rows)


def test_a_prompt_of_one_token_is_none_that_decodes(make_core):
    """Cut to fill a bucket, the last prompt can be so short; its id is the host's all the same."""
    buffers = make_core().started.runner.buffers
    assert measured_tick([Row(4, 4), Row(1, 1)], buffers, 9).from_device == [False, False]
    assert measured_tick([Row(1, 5), Row(1, 2)], buffers, 9).from_device == [True, True]


def test_a_measured_tick_fits_a_pool_of_any_size(make_core):
    core = make_core(num_pages=3)
    buffers, bucket = core.started.runner.buffers, Bucket("decode", 8, 8)
    tick = measured_tick([Row(1, 200)] * 8, buffers, 3)
    assert {page for admitted in tick.admitted for page in admitted.pages} == {1, 2}
    buffers.fill(tick, bucket, bucket.rows)
    assert buffers.state["num_computed_tokens"][:8].tolist() == [199] * 8


def test_a_measured_tick_that_is_rewound_runs_the_same_again(make_core):
    """Without, every run would attend to one token more."""
    runner = make_core().started.runner
    bucket, computed = Bucket("decode", 8, 8), runner.state["num_computed_tokens"]
    rows = measured_rows(bucket, max_model_len=100)
    variant = runner.buffers.fill(measured_tick(rows, runner.buffers, 9), bucket, 8)
    rewind = Rewind(runner.state)
    for _ in range(3):
        assert computed[:8].tolist() == [99] * 8
        runner.run(bucket, 8, variant)
        assert computed[:8].tolist() == [100] * 8
        rewind()
