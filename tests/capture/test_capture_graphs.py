"""GraphSet: refuses plainly without a GPU; captures and replays every bucket with one."""

import pytest
import torch

from capture.graphs import GraphSet, capture_order
from capture.ladder import Bucket, Ladder


def test_capture_order_is_largest_first():
    order = capture_order(Ladder(decode=[1, 8], packed=[(8, 4), (64, 8)]))
    assert [str(bucket) for bucket in order] == ["packed 64x8", "decode 8", "packed 8x4", "decode 1"]


def test_a_device_without_graphs_is_refused_in_a_sentence():
    with pytest.raises(RuntimeError, match=r"CUDA graphs need an NVIDIA GPU.*device is cpu"):
        GraphSet("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_every_bucket_is_captured_in_one_pool_and_replays():
    graphs = GraphSet("cuda", count_nodes=True)
    ladder = Ladder(decode=[1, 4, 16])
    source = torch.zeros(16, 1024, device="cuda")
    result = torch.zeros(16, device="cuda")
    for bucket in capture_order(ladder):
        rows = bucket.rows
        record = graphs.capture(
            bucket, lambda rows=rows: result[:rows].copy_((source[:rows] * 2).sum(dim=-1))
        )
        assert record.capture_seconds > 0
        assert record.nodes
        assert record.nodes["kernel"] >= 2
    for bucket in ladder.buckets:
        source.fill_(bucket.rows)
        graphs.replay(bucket)
        assert result[: bucket.rows].tolist() == [2048.0 * bucket.rows] * bucket.rows
    with pytest.raises(ValueError, match="has a graph already"):
        graphs.capture(Bucket("decode", 4, 4), lambda: None)
    graphs.clear()
    assert len(graphs) == 0
    graphs.capture(Bucket("decode", 4, 4), lambda: result[:4].fill_(7))
    graphs.replay(Bucket("decode", 4, 4))
    assert result[0] == 7
