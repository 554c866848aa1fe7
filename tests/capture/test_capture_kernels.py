"""KernelListener: hears a Triton kernel that is compiled for a GPU, even on a machine that has none."""

import pytest

from capture.audit import Audit
from capture.events import Event
from capture.kernels import KernelListener

triton = pytest.importorskip("triton", reason="needs Triton, which PyTorch has on Linux only")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402


@triton.jit
def double(pointer, count, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(pointer + offsets, tl.load(pointer + offsets, mask=mask) * 2, mask=mask)


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Compiles the kernel for a Hopper GPU into a Triton cache of its own."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def build(block: int) -> None:
        signature = {"pointer": "*fp32", "count": "i32", "BLOCK": "constexpr"}
        source = ASTSource(fn=double, signature=signature, constexprs={"BLOCK": block})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))

    return build


def test_a_kernel_built_after_the_seal_is_late(build):
    with Audit() as audit:
        build(16)
        audit.seal()
        audit.tag = ("packed 64x8", 5)
        build(32)
        build(32)  # found on disk: cheaper, but still too late
        before, built, loaded = audit.events("triton")
    assert [before.late, built.late, loaded.late] == [False, True, True]
    assert "double compiled in" in built.reason
    assert "pointer: *fp32" in built.reason
    assert "loaded from the disk cache" in loaded.reason
    assert built.location.file == __file__
    assert built.location.line == double.fn.__code__.co_firstlineno
    assert (built.bucket, built.tick) == ("packed 64x8", 5)
    assert audit.verdict()["late_kernels"] == 2


def test_listeners_chain_and_give_back_what_was_there(build):
    before = triton.knobs.compilation.listener
    first: list[Event] = []
    second: list[Event] = []
    lower, upper = KernelListener(first.append), KernelListener(second.append)
    assert lower.available
    build(16)
    assert (len(first), len(second)) == (1, 1)
    upper.detach()
    build(16)
    assert (len(first), len(second)) == (2, 1)
    lower.detach()
    assert triton.knobs.compilation.listener == before
