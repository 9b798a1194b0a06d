"""Matrix products that serving needs: [m, k] activations by [n, k] weights, and the values of m.

Sizes are those of the models' published configurations, split by tensor parallelism (TP).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Matrix(NamedTuple):
    """A weight matrix on one rank."""

    n: int
    k: int


# Rows of a step: dense at the sizes of tiles and CUDA graphs, quarters of an octave above.
ROWS = (
    *(1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512),
    *(640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168),
    *(8192, 10240, 12288, 14336, 16384),
)
# Rows beyond the steps in tiles and waves of tiles; the counts above are the last before a step.
STEP_ROWS = (136, 264, 392, 520, 576, 704)
HALF_ROWS = (
    *(1, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280),
    *(1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384),
)
BETWEEN_ROWS = (24, 80, 112, 136, 224, 264, 448, 520, 576, 896)
"""Rows between those of `HALF_ROWS`, where libraries change tiles most often."""
FEW_ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Only the last token of a sequence is projected to the vocabulary.
SEQUENCES = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256, 384, 512, 1024)


def decoder(
    hidden: int, heads: int, kv_heads: int, head_dim: int, inter: int, tp: int
) -> list[Matrix]:
    """Return qkv, o, gate_up and down of a layer with a dense FFN; ``inter`` 0 means no FFN."""
    queries = heads * head_dim // tp
    keys = max(1, kv_heads // tp) * head_dim
    layer = [Matrix(queries + 2 * keys, hidden), Matrix(hidden, queries)]
    if inter:
        layer += [Matrix(2 * inter // tp, hidden), Matrix(hidden, inter // tp)]
    return layer


def llama_8b(tp: int) -> list[Matrix]:
    """Return the matrices of a Llama-3.1-8B layer."""
    return decoder(4096, 32, 8, 128, 14336, tp)


def llama_70b(tp: int) -> list[Matrix]:
    """Return the matrices of a Llama-3.1-70B layer."""
    return decoder(8192, 64, 8, 128, 28672, tp)


def qwen3_32b(tp: int) -> list[Matrix]:
    """Return the matrices of a Qwen3-32B layer."""
    return decoder(5120, 64, 8, 128, 25600, tp)


def qwen3_30b_a3b(tp: int) -> list[Matrix]:
    """Return the matrices of a Qwen3-30B-A3B layer without its experts."""
    return decoder(2048, 32, 4, 128, 0, tp)


def deepseek_v3(tp: int) -> list[Matrix]:
    """Return those of DeepSeek-V3: the projections around MLA, the dense FFN and the shared
    expert."""
    heads = 128 // tp
    return [
        Matrix(1536 + 512 + 64, 7168),
        Matrix(heads * (128 + 64), 1536),
        Matrix(heads * (128 + 128), 512),
        Matrix(7168, heads * 128),
        Matrix(2 * 18432 // tp, 7168),
        Matrix(7168, 18432 // tp),
        Matrix(2 * 2048 // tp, 7168),
        Matrix(7168, 2048 // tp),
    ]


def gpt_oss(tp: int) -> list[Matrix]:
    """Return the matrices of a gpt-oss-20b or gpt-oss-120b layer without its experts."""
    return decoder(2880, 64, 8, 64, 0, tp)


def kimi_linear() -> list[Matrix]:
    """Return those of Kimi-Linear-48B-A3B: KDA, its low-rank gates, MLA, the dense FFN and the
    shared expert."""
    return [
        Matrix(3 * 32 * 128, 2304),
        Matrix(2304, 32 * 128),
        Matrix(2 * 128 + 32, 2304),
        Matrix(32 * 128, 128),
        Matrix(32 * 192, 2304),
        Matrix(512 + 64, 2304),
        Matrix(32 * 256, 512),
        Matrix(2 * 9216, 2304),
        Matrix(2304, 9216),
        Matrix(2 * 1024, 2304),
        Matrix(2304, 1024),
    ]


# Router scores per expert: DeepSeek-V3, Qwen3-30B-A3B, gpt-oss, Kimi Linear.
ROUTERS = [
    *(Matrix(256, 7168), Matrix(128, 2048), Matrix(128, 2880), Matrix(32, 2880)),
    Matrix(256, 2304),
]

LM_HEADS = [
    *(Matrix(128256 // tp, 4096) for tp in (1, 2, 4, 8)),
    *(Matrix(128256 // tp, 8192) for tp in (2, 4, 8)),
    *(Matrix(151936 // tp, 5120) for tp in (1, 2, 4)),
    *(Matrix(129280 // tp, 7168) for tp in (1, 8)),
    *(Matrix(201088 // tp, 2880) for tp in (1, 2)),
    *(Matrix(151936, 2048), Matrix(163840, 2304)),
]

Grid = Sequence[tuple[list[Matrix], tuple[int, ...]]]
"""Matrices, and the numbers of rows that they are multiplied with."""


def bfloat16_grid() -> Grid:
    """Return the bfloat16 grid, which covers all models above."""
    dense = [matrix for tp in (1, 2, 4, 8) for matrix in llama_8b(tp)]
    dense += [matrix for tp in (2, 4, 8) for matrix in llama_70b(tp)]
    others = [*qwen3_30b_a3b(1), *qwen3_30b_a3b(2), *qwen3_32b(1), *qwen3_32b(2), *qwen3_32b(4)]
    others += [*deepseek_v3(1), *deepseek_v3(8), *gpt_oss(1), *gpt_oss(2), *kimi_linear()]
    return [
        (dense, ROWS + STEP_ROWS),
        (others, HALF_ROWS + BETWEEN_ROWS),
        (LM_HEADS, SEQUENCES),
        (ROUTERS, FEW_ROWS),
    ]


# Grids by kernel, format of the activations and format of the weights.
NARROW: dict[tuple[str, str, str], Grid] = {
    ("torch", "fp8", "fp8"): [
        (llama_8b(1), ROWS + STEP_ROWS),
        (llama_70b(2) + llama_70b(8), HALF_ROWS + BETWEEN_ROWS),
    ],
    ("torch", "fp8", "fp8_block"): [
        (deepseek_v3(1) + deepseek_v3(8) + qwen3_32b(1), HALF_ROWS + BETWEEN_ROWS)
    ],
    ("torch_row", "fp8", "fp8"): [(llama_8b(1), ROWS + STEP_ROWS)],
    ("torch", "int8", "int8"): [(llama_8b(1), ROWS + STEP_ROWS)],
}
FEWEST_ROWS = {"int8": 17, "fp8_block": 2}
"""Fewest rows that torch accepts, by format of the weights."""


def cpu_grid(quick: bool) -> Grid:
    """Return a grid that is small enough for a processor."""
    small = [Matrix(512, 512), Matrix(1024, 1024), Matrix(2048, 1024), Matrix(1024, 4096)]
    return [(small[1:3] if quick else small, (1, 16, 64, 256))]
