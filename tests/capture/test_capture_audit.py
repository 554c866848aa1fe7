"""Audit: a deliberately broken model proves that each detector fires, with the right line."""

import inspect
import logging

import pytest
import torch

from capture.audit import VERDICT, Audit
from capture.compiler import CompiledStep, LateCompilationError
from capture.events import Event, advise
from capture.ladder import Bucket


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def audit():
    with Audit() as audit:
        yield audit


def line_of(function, text: str) -> int:
    """The line number of the first source line of `function` that holds `text`."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def sound(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) + 1


def scales_by_item(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    factor = y.sum().item()
    return y * factor


def branches_on_data(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y


def takes_a_length(x: torch.Tensor, length: int) -> torch.Tensor:
    y = x + 1
    return y * length


def test_a_sound_step_leaves_a_clean_verdict(audit):
    step = CompiledStep(sound, backend="aot_eager", unbacked={0: {0: "n"}}, listener=audit)
    step(torch.zeros(4))
    audit.seal()
    step.seal(strict=True)
    for size in (1, 2, 100):
        step(torch.zeros(size))
    assert audit.verdict() == dict.fromkeys(VERDICT, 0)
    assert not audit.degraded
    (compilation,) = audit.events()
    assert (compilation.kind, compilation.late) == ("compilation", False)
    assert compilation.location.file == __file__
    assert compilation.location.function == "sound"
    assert compilation.compilation.seconds > 0
    assert compilation.compilation.guards > 0
    assert compilation.compilation.graph_ops >= 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_item_in_a_whole_graph_is_a_host_sync(audit, backend):
    CompiledStep(scales_by_item, backend=backend)(torch.ones(3))
    (sync,) = audit.events("host_sync")
    assert sync.location.file == __file__
    assert sync.location.line == line_of(scales_by_item, ".item()")
    assert sync.location.source == "factor = y.sum().item()"
    assert "item reads a tensor's values on the host" in sync.reason
    assert audit.verdict()["host_syncs"] == 1


def test_item_without_fullgraph_is_a_graph_break(audit):
    CompiledStep(scales_by_item, backend="eager", fullgraph=False)(torch.ones(3))
    (broken,) = audit.events("graph_break")
    assert broken.location.line == line_of(scales_by_item, ".item()")
    assert "Tensor.item()" in broken.reason
    assert broken.advice
    assert audit.verdict()["graph_breaks"] == 1


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_branch_on_data_is_a_graph_break_even_where_it_raises(audit, fullgraph):
    step = CompiledStep(branches_on_data, backend="eager", fullgraph=fullgraph)
    if fullgraph:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            step(torch.ones(3))
    else:
        step(torch.ones(3))
    (broken,) = audit.events("graph_break")
    assert broken.reason.startswith("Data-dependent branching")
    assert broken.location.file == __file__
    assert broken.location.line == line_of(branches_on_data, "if y.sum()")


def test_a_python_int_is_a_late_recompile_that_names_bucket_tick_guard_and_line(audit, caplog):
    late: list[Event] = []
    audit.on_late = late.append
    step = CompiledStep(takes_a_length, backend="eager")
    audit.tag = (Bucket("decode", 4, 4), 1)
    step(torch.ones(4), 7)
    audit.seal()
    step.seal(strict=False)
    audit.tag = (Bucket("decode", 4, 4), 17)
    with caplog.at_level(logging.WARNING, logger="capture"):
        step(torch.ones(4), 8)
    (recompile,) = audit.events(late=True)
    assert late == [recompile]
    assert (recompile.kind, recompile.bucket, recompile.tick) == ("recompile", "decode 4", 17)
    assert recompile.guards == ("length == 7",)
    assert recompile.location.line == line_of(takes_a_length, "* length")
    assert recompile.location.file == __file__
    assert "in a tensor" in recompile.advice
    assert "late recompile in bucket decode 4 at tick 17: length == 7" in caplog.text
    assert audit.verdict()["late_compilations"] == 1
    assert audit.degraded


def test_every_artefact_that_did_not_fit_gives_a_guard(audit):
    step = CompiledStep(takes_a_length, backend="eager")
    for length in (1, 2, 3):
        step(torch.ones(4), length)
    assert audit.events("recompile")[-1].guards == ("length == 2", "length == 1")
    assert audit.verdict()["late_compilations"] == 0  # all before the seal


def test_a_new_dtype_is_a_late_recompile(audit):
    step = CompiledStep(sound, backend="eager")
    step(torch.ones(4))
    audit.seal()
    step(torch.ones(4, dtype=torch.float64))
    (recompile,) = audit.events("recompile", late=True)
    assert recompile.reason == "tensor 'x' dtype mismatch. expected Float, actual Double"
    assert recompile.location.line == line_of(sound, "def sound")
    assert "Convert this argument" in recompile.advice


def test_a_first_compilation_after_the_seal_is_late_too(audit):
    audit.seal()
    torch.compile(sound, backend="eager")(torch.ones(4))
    assert audit.verdict()["late_compilations"] == 1


def test_a_strict_refusal_is_recorded_with_its_guard(audit):
    step = CompiledStep(takes_a_length, backend="eager", listener=audit)
    step(torch.ones(4), 7)
    audit.seal()
    step.seal(strict=True)
    audit.tag = ("decode 4", 3)
    with pytest.raises(LateCompilationError):
        step(torch.ones(4), 8)
    (refused,) = audit.events(late=True)
    assert (refused.kind, refused.guards, refused.tick) == ("refused", ("length == 7",), 3)
    assert refused.location.file == __file__
    assert audit.verdict()["late_compilations"] == 1


def test_a_changed_pool_is_seen_by_address_and_by_shape(audit):
    pool = torch.zeros(4, 16)
    audit.watch({"pool": pool})
    assert audit.check_watched() == 0
    audit.seal()
    assert audit.check_watched({"pool": torch.zeros(4, 16)}) == 1
    assert audit.check_watched({"pool": torch.zeros(2, 16)}) == 1
    first, second = audit.events("moved")
    assert first.reason.startswith("the buffer pool changed: address ")
    assert "shape (4, 16) -> (2, 16)" in second.reason
    assert audit.verdict()["moved_buffers"] == 2


def test_a_pool_of_another_shape_is_a_late_recompile_that_names_it(audit):
    def write(pool: torch.Tensor, x: torch.Tensor) -> None:
        pool[0] = x

    step = CompiledStep(write, backend="eager", listener=audit)
    step(torch.zeros(4, 16), torch.ones(16))
    audit.seal()
    step(torch.zeros(2, 16), torch.ones(16))
    (recompile,) = audit.events(late=True)
    assert recompile.reason.startswith("tensor 'pool' size mismatch at index 0. expected 4, actual 2")
    assert recompile.location.function == "write"


def test_eager_steps_are_counted_after_the_seal_and_logged_ever_more_rarely(audit, caplog):
    step = CompiledStep(sound, compile=False, listener=audit)
    step(torch.ones(1))
    audit.seal()
    with caplog.at_level(logging.WARNING, logger="capture"):
        for _ in range(100):
            step(torch.ones(1))
    assert audit.verdict()["eager_steps"] == 100
    assert audit.count("eager") == 101
    assert len(caplog.records) == 7  # the 1st, 2nd, 4th, ... 64th


def test_all_events_are_counted_but_only_so_many_kept():
    with Audit(max_events=3) as audit:
        for _ in range(10):
            audit.eager_step("step")
        assert audit.count("eager") == 10
        assert len(audit.events()) == 3


def test_phases_are_timed_nest_and_name_the_events_in_them(audit):
    with audit.phase("warm-up"), audit.phase("compile"):
        torch.compile(sound, backend="eager")(torch.ones(4))
    inner, outer = audit.phases
    assert (outer.name, outer.depth, inner.name, inner.depth) == ("warm-up", 0, "compile", 1)
    assert 0 < inner.seconds <= outer.seconds
    assert inner.start >= outer.start
    assert audit.events()[0].phase == "compile"


def test_a_closed_audit_hears_nothing_and_leaves_the_logger_as_it_was():
    trace = logging.getLogger("torch.__trace")
    before = (list(trace.handlers), trace.level, trace.propagate)
    audit = Audit()
    audit.close()
    torch.compile(sound, backend="eager")(torch.ones(4))
    assert audit.events() == []
    assert (list(trace.handlers), trace.level, trace.propagate) == before


def test_two_audits_hear_the_same():
    with Audit() as one, Audit() as other:
        torch.compile(sound, backend="eager")(torch.ones(4))
        assert one.count("compilation") == other.count("compilation") == 1


def test_a_callback_that_compiles_does_not_recurse(audit):
    audit.on_late = lambda event: torch.compile(torch.sin, backend="eager")(torch.ones(2))
    audit.seal()
    torch.compile(sound, backend="eager")(torch.ones(4))
    assert audit.count("compilation", late=True) == 1


@pytest.mark.parametrize(
    ("guard", "advice"),
    [
        ("tensor 'x' size mismatch at index 0. expected 8, actual 4", "Pad this argument"),
        ("tensor 'x' stride mismatch at index 0. expected 8, actual 4", "contiguous"),
        ("tensor 'w' dispatch key set mismatch. expected ...", "same grad or inference mode"),
        ("GLOBAL_STATE changed: grad_mode ", "before warm-up"),
        ("len(xs) == 2", "same length"),
        ("n == 2", "in a tensor"),
        ("something new", "run it once before sealing"),
    ],
)
def test_each_kind_of_guard_has_its_advice(guard, advice):
    assert advice in advise(guard)
