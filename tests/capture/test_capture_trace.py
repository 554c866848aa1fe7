"""TraceListener: reads each kind of record, tolerates unknown ones, and finds copies of watched buffers."""

import json
import logging

import torch

from capture.audit import Audit
from capture.compiler import CompiledStep
from capture.trace import cache_lookup, graph_break, guard_of, split_reasons

OUTPUT_CODE = """
def call(self, args):
    buf0 = empty_strided_cuda((64, 16, 8), (128, 8, 1), torch.bfloat16)
    triton_poi_fused_0.run(arg0_1, buf0, 8192, stream=stream0)
    extern_kernels.mm(arg1_1, buf0, out=buf1)
    buf2 = torch.ops.aten.sort.default(buf1)
    cpp_fused_add_1(buf1)
    return (buf2,)
def get_args():
    extern_kernels.mm(no, more)
"""


def send(name: str, payload: str, **metadata) -> None:
    record = logging.LogRecord("torch.__trace", logging.DEBUG, __file__, 1, "", (), None)
    record.metadata = {"artifact": {"name": name}, "frame_id": 0, "frame_compile_id": 0} | metadata
    record.payload = payload
    logging.getLogger("torch.__trace").handle(record)


def finish_compilation(**metrics) -> None:
    record = logging.LogRecord("torch.__trace", logging.DEBUG, __file__, 1, "", (), None)
    record.metadata = {
        "compilation_metrics": {"compile_id": "0/0", **metrics},
        "frame_id": 0,
        "frame_compile_id": 0,
    }
    record.payload = None
    logging.getLogger("torch.__trace").handle(record)


def test_a_copy_of_a_watched_buffer_in_generated_code_is_found():
    with Audit() as audit:
        audit.watch({"keys": torch.zeros(64, 16, 8), "small": torch.zeros(3)})
        send("inductor_output_code", OUTPUT_CODE, inductor_output_code={"filename": "/cache/abc.py"})
        (copy,) = audit.events("pool_copy")
    assert "as large as the buffer keys" in copy.reason
    assert audit.verdict()["buffer_copies"] == 1


def test_a_copy_of_a_buffer_whose_first_dimension_is_a_symbol_is_told_by_the_others():
    code = "buf0 = empty_strided_cuda((u3, 16, 8), (128, 8, 1), torch.float32)"
    other = "buf0 = empty_strided_cuda((u3, 16, 4), (64, 4, 1), torch.float32)"
    with Audit() as audit:
        audit.watch({"keys": torch.zeros(64, 16, 8)}, unbacked=(0,))
        send("inductor_output_code", other, inductor_output_code={})
        assert audit.verdict()["buffer_copies"] == 0
        send("inductor_output_code", code, inductor_output_code={})
        assert audit.verdict()["buffer_copies"] == 1


def test_a_compilation_gathers_its_kernels_cache_and_seconds():
    with Audit() as audit:
        send("inductor_output_code", OUTPUT_CODE)
        send("aotautograd_cache_miss", json.dumps({"key": "a1", "components": []}))
        details = {"key": "f1", "components": ["[abc] gm: <lambda>()", "[def] device: cuda"]}
        send("fx_graph_cache_hit", json.dumps(details))
        finish_compilation(
            duration_us=3_000_000,
            aot_autograd_cumulative_compile_time_us=2_000_000,
            inductor_cumulative_compile_time_us=1_500_000,
            guard_count=7,
            co_name="step",
        )
        (event,) = audit.events("compilation")
    compilation = event.compilation
    assert (compilation.seconds, compilation.dynamo_seconds, compilation.inductor_seconds) == (3.0, 1.0, 1.5)
    assert (compilation.kernels, compilation.guards) == (4, 7)
    assert [lookup.outcome for lookup in compilation.cache] == ["miss", "hit"]
    assert compilation.cache[1].components == (("gm", "abc"), ("device", "def"))
    assert compilation.cache_outcome == "hit"


def test_a_compilation_that_fails_otherwise_is_no_graph_break():
    with Audit() as audit:
        finish_compilation(fail_type="BackendCompilerFailed", fail_reason="ValueError: no")
        finish_compilation(fail_type="FailOnRecompileLimitHit", fail_reason="Hard failure due to fullgraph")
        backend, limit = audit.events()
    assert (backend.kind, backend.reason) == ("failed", "ValueError: no")
    assert (limit.kind, limit.reason) == ("failed", "the limit of recompiles was reached")


def test_records_that_make_no_sense_are_let_pass(monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with Audit() as audit:
        send("recompile_reasons", "[not json")
        send("something_new", "?")
        logging.getLogger("torch.__trace").debug("no metadata at all")
        assert audit.events() == []


def test_reasons_come_alone_or_as_a_list():
    assert split_reasons("0/0: n == 2  # x*n  # f.py:3 in f") == ["0/0: n == 2  # x*n  # f.py:3 in f"]
    assert split_reasons('[\n"0/1: n == 3",\n"0/0: n == 2"\n]') == ["0/1: n == 3", "0/0: n == 2"]
    assert split_reasons("") == []
    assert guard_of("0/0: n == 2      # x*n  # f.py:3 in f\nUser stack trace: ...") == "n == 2"


def test_a_break_reason_without_a_traceback_still_names_its_place():
    event = graph_break(
        "Graph break in user code at /srv/model.py:12\nGraph Break Reason: Calling print\n  Hint: Do not."
    )
    assert (event.location.file, event.location.line) == ("/srv/model.py", 12)
    assert (event.reason, event.advice) == ("Calling print", "Do not.")


def test_a_cache_bypass_gives_its_reason():
    lookup = cache_lookup("fx_graph", "bypass", '{"cache_bypass_reason": "opaque function"}')
    assert (lookup.outcome, lookup.reason) == ("bypass", "opaque function")


def test_inductor_is_heard_from_start_to_end(tmp_path, monkeypatch):
    """The one real compilation: seconds, kernels and the cache's answer come from the compiler itself."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()

    def write(pool: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        pool[rows] = values
        return values.sum(dim=-1)

    with Audit() as audit:
        step = CompiledStep(write, unbacked={1: {0: "rows"}, 2: {0: "rows"}}, listener=audit)
        pool = torch.zeros(64, 8)
        audit.watch({"pool": pool})
        step(pool, torch.arange(4), torch.ones(4, 8))
        (event,) = audit.events("compilation")
        assert audit.verdict()["buffer_copies"] == 0
    assert event.compilation.inductor_seconds > 0
    assert event.compilation.kernels >= 1
    assert event.compilation.cache_outcome == "miss"
    assert pool.sum() == 32
