"""CompiledStep: one artefact for all sizes, and a seal that holds."""

import pytest
import torch
from torch._dynamo.utils import counters

from capture.compiler import CompiledStep, LateCompilationError, refusal_reasons


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def lookup(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """A toy step: ids [tokens] into table [vocab, width] -> the nearest row of each, [tokens]."""
    return (table[ids] @ table.T).argmax(dim=-1)


class Recorder:
    """A listener that remembers what it was told."""

    def __init__(self):
        self.eager: list[str] = []
        self.refusals: list[str] = []

    def eager_step(self, function: str) -> None:
        self.eager.append(function)

    def refused(self, function: str, message: str) -> None:
        self.refusals.append(message)


def compilations() -> int:
    return counters["stats"]["unique_graphs"]


def test_unbacked_dimensions_give_one_artefact_for_all_sizes():
    step = CompiledStep(lookup, backend="aot_eager", unbacked={0: {0: "tokens"}})
    table = torch.randn(32, 8)
    for tokens in (1, 4, 2, 31):
        ids = torch.arange(tokens)
        assert torch.equal(step(ids, table), lookup(ids, table))
    assert compilations() == 1
    assert step.calls == 4


def test_unbacked_arguments_can_be_keywords_and_share_a_size():
    def add(*, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left + right

    step = CompiledStep(add, backend="eager", unbacked={"left": {0: "n"}, "right": {0: "n"}})
    for size in (1, 3, 5):
        assert step(left=torch.ones(size), right=torch.ones(size)).sum() == 2 * size
    assert compilations() == 1


def test_a_specialised_step_has_an_artefact_a_shape_beyond_the_usual_limit():
    step = CompiledStep(lookup, backend="eager", specialize=True, shapes=12)
    for tokens in range(1, 13):
        step(torch.arange(tokens), torch.randn(32, 8))
    assert compilations() == 12


def test_a_strictly_sealed_step_refuses_what_is_new_and_names_the_guard():
    listener = Recorder()
    step = CompiledStep(lookup, backend="eager", unbacked={0: {0: "tokens"}}, listener=listener)
    table = torch.randn(32, 8)
    step(torch.arange(4), table)
    step.seal(strict=True)
    assert step.sealed
    step(torch.arange(9), table)  # a new size of a marked dimension is not new
    with pytest.raises(
        LateCompilationError, match=r"lookup would have to be compiled again.*dtype mismatch"
    ) as late:
        step(torch.arange(4), table.double())
    assert late.value.reasons[0].startswith("0/0: tensor 'table' dtype mismatch")
    assert "fail_on_recompile" in listener.refusals[0]
    assert torch.compile(torch.sin, backend="eager")(torch.zeros(1)) == 0  # others may still compile


def test_a_step_sealed_before_its_first_call_has_nothing_to_run():
    step = CompiledStep(lookup, backend="eager")
    step.seal(strict=True)
    with pytest.raises(LateCompilationError, match="never compiled before the seal"):
        step(torch.arange(4), torch.randn(32, 8))


def test_a_leniently_sealed_step_compiles_on_and_unseal_lifts_a_strict_seal():
    step = CompiledStep(lookup, backend="eager")
    table = torch.randn(32, 8)
    step(torch.arange(4), table)
    step.seal(strict=False)
    step(torch.arange(4), table.double())
    assert compilations() == 2
    step.seal(strict=True)
    step.unseal()
    step(torch.arange(4), table.half())
    assert compilations() == 3
    assert not step.sealed


def test_errors_of_the_step_itself_pass_through_a_seal():
    step = CompiledStep(lookup, backend="eager", unbacked={0: {0: "tokens"}})
    step(torch.arange(4), torch.randn(32, 8))
    step.seal(strict=True)
    with pytest.raises(IndexError):
        step(torch.tensor([99]), torch.randn(32, 8))


def test_an_eager_step_runs_uncompiled_and_says_so():
    listener = Recorder()
    step = CompiledStep(lookup, compile=False, listener=listener)
    step.seal(strict=True)
    step(torch.arange(4), torch.randn(32, 8))
    assert step.eager_calls == 1
    assert listener.eager == ["lookup"]
    assert compilations() == 0


def test_a_graph_break_is_an_error_under_fullgraph():
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(torch._dynamo.exc.Unsupported):
        CompiledStep(branch, backend="eager")(torch.ones(2))
    assert CompiledStep(branch, backend="eager", fullgraph=False)(torch.ones(2)).sum() == 4


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="not both"):
        CompiledStep(lookup, specialize=True, unbacked={0: {0: "tokens"}})
    with pytest.raises(ValueError, match="shapes is 0"):
        CompiledStep(lookup, shapes=0)
    with pytest.raises(ValueError, match=r"argument 'ids'.*lookup was not called with"):
        CompiledStep(lookup, backend="eager", unbacked={"ids": {0: "n"}})(torch.arange(2), torch.randn(4, 2))


def test_module_guards_can_be_dropped():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 2.0
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight * self.scale

    layer = Layer()
    step = CompiledStep(layer, backend="eager", skip_module_guards=True)
    step(torch.ones(3))
    layer.scale = 3.0  # unguarded: the compiled constant stays
    with torch.no_grad():
        layer.weight.copy_(torch.full((3,), 5.0))  # weights are read anew at each call
    assert step(torch.ones(3)).tolist() == [10, 10, 10]
    assert compilations() == 1


def test_the_reasons_of_a_refusal_are_read_from_its_message():
    message = (
        "Detected recompile ...\n    triggered by:\n    - 0/1: n == 2    # x*n  # f.py:3 in f\n    - 0/0: y"
    )
    assert refusal_reasons(message) == ("0/1: n == 2    # x*n  # f.py:3 in f", "0/0: y")


class Scale(torch.nn.Module):
    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@pytest.mark.parametrize("strict", [False, True])
def test_steps_of_one_class_do_not_share_artefacts(strict):
    """Nothing guards a module's attributes here, so a shared artefact would multiply by the other's factor."""
    steps = [
        CompiledStep(Scale(factor), backend="aot_eager", skip_module_guards=True) for factor in range(12)
    ]
    for factor, step in enumerate(steps):
        step(torch.ones(2))
        step.seal(strict)
        assert step(torch.ones(2)).tolist() == [factor, factor]
    assert [step(torch.ones(2))[0].item() for step in steps] == list(range(12))
    assert compilations() == 12
