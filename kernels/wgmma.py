#!/usr/bin/env python3
"""Prints kernels/wgmma.cuh: one function for each format and width, since an instruction names every register it uses."""

from textwrap import wrap

FORMATS = ("bf16", "f16")
WIDTHS = (24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)

HEAD = """// Written by wgmma.py. d (+)= a·b of one warpgroup: 64 × 16 by 16 × N, bf16 or f16, f32 sums, both operands from shared memory.
#pragma once

template <int N>
__device__ __forceinline__ void wgmma_bf16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate);
template <int N>
__device__ __forceinline__ void wgmma_f16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate);
"""


def function(form: str, width: int) -> str:
    count = width // 2
    registers = wrap(", ".join(f"%{i}" for i in range(count)), 120)
    operands = wrap(", ".join(f'"+f"(d[{i}])' for i in range(count)), 120)
    lines = [
        "template <>",
        f"__device__ __forceinline__ void wgmma_{form}<{width}>(float (&d)[{count}], uint64_t a, uint64_t b, bool accumulate) {{",
        "    asm volatile(",
        f'        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"',
        f'        "wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{form}.{form} {{"',
        *[f'        "{line} "' for line in registers],
        f'        "}}, %{count}, %{count + 1}, p, 1, 1, 0, 0;\\n}}"',
        f"        : {operands[0]}",
        *[f"          {line}" for line in operands[1:]],
        '        : "l"(a), "l"(b), "r"(static_cast<uint32_t>(accumulate)));',
        "}",
    ]
    return "\n".join(lines)


print(HEAD, *(function(form, width) for form in FORMATS for width in WIDTHS), sep="\n")
