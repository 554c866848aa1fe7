"""What the sampler's Triton kernels share: loading, keys that sort like floats, and the noise of a draw."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix32(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def sort_key(raw):
    """A float's bits as an int32 that sorts like the float: 16 bits wide for a 16-bit float, so half the steps."""
    if raw.dtype.primitive_bitwidth == 16:
        bits = raw.to(tl.int16, bitcast=True).to(tl.int32)
        key = tl.where(bits < 0, bits ^ 0x7FFF, bits)
    else:
        bits = raw.to(tl.int32, bitcast=True)
        key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return key


@triton.jit
def sort_value(key, dtype: tl.constexpr):
    """The float that sort_key made the key of, as fp32."""
    if dtype.primitive_bitwidth == 16:
        bits = tl.where(key < 0, key ^ 0x7FFF, key).to(tl.int16)
        value = bits.to(dtype, bitcast=True).to(tl.float32)
    else:
        value = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)
    return value


@triton.jit
def load_logits(logits, offsets, vocab):
    return tl.load(logits + offsets, mask=offsets < vocab, other=float("-inf"))


@triton.jit
def draw_key(seed, position):
    """What a row's noise is keyed by, besides the id."""
    return mix32(
        seed.to(tl.uint32) ^ mix32((seed >> 32).to(tl.uint32)) ^ mix32(position.to(tl.uint32) + 0x9E3779B9)
    )


@triton.jit
def race(raw, ids, temperature, key):
    """What the ids of a row compete with: logits / temperature plus Gumbel noise, which is -log of an exponential draw."""
    bits = mix32(key ^ mix32(ids.to(tl.uint32) * 0x9E3779B1))
    uniform = (bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    uniform = tl.minimum(uniform, 0.99999994)
    # log1p for small arguments: two terms are exact in fp32 below 2^-10.
    wait = tl.where(uniform < 0.0009765625, uniform * (1.0 + 0.5 * uniform), -tl.log(1.0 - uniform))
    return raw / temperature - tl.log(wait)
