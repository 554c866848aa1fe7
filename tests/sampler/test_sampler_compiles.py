"""The sampler's kernels compile for a Hopper GPU, on a machine that has none: Triton's interpreter knows no types.

It runs a kernel as plain Python, so that a name used for a number and then for a flag passes there and fails on a GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from helios.sampler import adjust_triton, draw_triton, limits_triton, logprobs_triton

HOPPER = GPUTarget("cuda", 90, 32)
BLOCK, SLICES_PAD = draw_triton.BLOCK, 64  # of a vocabulary of 151,669 ids
FLOATS = {
    "adjusted",
    "temperatures",
    "top_ps",
    "min_ps",
    "thresholds",
    "best_values",
    "sums",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "bias_values",
    "top_logprobs",
    "sampled_logprobs",
}
KERNELS = [
    (limits_triton._groups_kernel, {"block": BLOCK, "groups": limits_triton.GROUPS}, {}, 8),
    (limits_triton._bound_kernel, {"groups_pad": 512, "dtype": None}, {}, 4),
    (limits_triton._gather_kernel, {"block": BLOCK, "capacity": limits_triton.CAPACITY}, {}, 8),
    (limits_triton._choose_kernel, {"slices_pad": SLICES_PAD, "capacity": limits_triton.CAPACITY}, {}, 4),
    (limits_triton._threshold_kernel, {"block": limits_triton.THRESHOLD_BLOCK}, {}, 32),
    (draw_triton._slice_kernel, {"block": BLOCK, "limited": True}, {}, 8),
    (draw_triton._slice_kernel, {"block": BLOCK, "limited": False}, {}, 8),
    (draw_triton._merge_kernel, {"slices_pad": SLICES_PAD}, {}, 1),
    (adjust_triton._adjust_kernel, {"block": BLOCK}, {}, 8),
    (logprobs_triton._logprob_slice_kernel, {"block": BLOCK}, {"peaks": "*fp32"}, 8),
    (
        logprobs_triton._logprob_merge_kernel,
        {"found": 20, "found_pad": 32, "slices_pad": SLICES_PAD},
        {"peaks": "*fp32", "top_values": "*bf16", "top_indices": "*i64"},
        1,
    ),
]
WITH_FLOAT32 = {
    "_groups_kernel",
    "_bound_kernel",
    "_gather_kernel",
    "_choose_kernel",
    "_threshold_kernel",
    "_slice_kernel",
}


def type_of(name: str, logits: str, others: dict[str, str]) -> str:
    """An argument's type in a signature: pointers by what they point to, sizes and strides as int32."""
    if name in others:
        return others[name]
    if name == "logits":
        return logits
    if name.endswith("stride") or name in ("vocab", "num_groups", "slices"):
        return "i32"
    return {"seeds": "*i64", "output_counts": "*i16"}.get(name, "*fp32" if name in FLOATS else "*i32")


def cases() -> list[Any]:
    return [
        pytest.param(kernel, constants, others, warps, logits, id=f"{kernel.__name__}-{logits[1:]}-{n}")
        for n, (kernel, constants, others, warps) in enumerate(KERNELS)
        for logits in ("*bf16", "*fp32")[: 1 + (kernel.__name__ in WITH_FLOAT32)]
    ]


@pytest.mark.parametrize(("kernel", "constants", "others", "warps", "logits"), cases())
def test_it_compiles(kernel, constants, others, warps, logits):
    element = {"*bf16": tl.bfloat16, "*fp32": tl.float32}[logits]
    constants = {name: element if value is None else value for name, value in constants.items()}
    signature = {
        name: "constexpr" if name in constants else type_of(name, logits, others) for name in kernel.arg_names
    }
    compiled = triton.compile(
        ASTSource(kernel, signature, constants), target=HOPPER, options={"num_warps": warps}
    )
    assert "cubin" in compiled.asm
