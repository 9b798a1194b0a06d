"""Vidur's profiled kernels from a datasheet and two efficiency constants, by mechanism.

Two shares, of the compute peak and of the memory bandwidth, hold for every operator; a kernel has
the documented generic fixed time. All else follows from how the kernels divide their work:

- GEMM: rows are padded to a tile (16, 32, 64, 128, multiples of 128), as
`costmodels.hardware.roofline`. - Decode attention: one block a sequence and KV head, two on an SM.
The last, partly filled wave
  streams no faster than its SMs can: as if each SM had a block.
- Prefill attention: query tiles of 64 rows and KV tiles of 128, in whole waves of two blocks an SM.
  The profiled kernel (FlashAttention 2 with a KV cache) also appends: each block of each query head
  copies the new keys and values it looks at, read and written once more, before it multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodels.hardware.gpus import GpuSpec
from costmodels.hardware.roofline import tiled_rows
from costmodels.tables.ideal import attention_sums, attention_work
from costmodels.tables.kinds import Precision
from costmodels.work import Array
from sim.errors import ScenarioError
from tests.published.models.vidur_profiles import MeasuredOperator

_TILE_ROWS = 128
_QUERY_TILE, _KV_TILE = 64, 128
_BLOCKS_PER_SM = 2
_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoShares:
    """The two constants, and the fixed time of a kernel."""

    compute: float
    memory: float
    fixed_s: float = 3e-6
    """`efficiency.yaml`, generic: AIConfigurator's empirical 3 us an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PeakSeconds:
    """Seconds of every shape at the datasheet's peaks: ``[n]`` each."""

    compute_s: Array
    memory_s: Array
    is_overlapped: bool = True
    """The longer of both counts; else their sum."""


def datasheet_seconds(operator: MeasuredOperator, gpu: GpuSpec, shares: TwoShares) -> Array:
    """Seconds of every shape of ``operator``: ``[n]``.

    Raises `ScenarioError` if the number of SMs or the link's bandwidth is needed and unknown.
    """
    return _scaled(_peak_seconds(operator, gpu), shares)


def fit_shares(operators: list[MeasuredOperator], gpu: GpuSpec) -> TwoShares:
    """The two shares (in steps of 0.02) with the smallest mean over ``operators`` of the median
    |relative error|."""
    peaks = [_peak_seconds(operator, gpu) for operator in operators]

    def loss(shares: TwoShares) -> float:
        errors = [
            np.median(np.abs(_scaled(peak, shares) / operator.seconds - 1))
            for peak, operator in zip(peaks, operators, strict=True)
        ]
        return float(np.mean(errors))

    steps = [share / 100 for share in range(50, 96, 2)]
    return min((TwoShares(compute=c, memory=m) for c in steps for m in steps), key=loss)


def _scaled(peak: _PeakSeconds, shares: TwoShares) -> Array:
    compute_s, memory_s = peak.compute_s / shares.compute, peak.memory_s / shares.memory
    work_s = np.maximum(compute_s, memory_s) if peak.is_overlapped else compute_s + memory_s
    return work_s + shares.fixed_s


def _peak_seconds(operator: MeasuredOperator, gpu: GpuSpec) -> _PeakSeconds:
    columns, flop_per_s, bytes_per_s = operator.columns, gpu.bf16_flop_per_s, gpu.hbm_bytes_per_s
    is_overlapped = True
    if operator.kind == "gemm":
        m, n, k = columns["m"], columns["n"], columns["k"]
        flops = 2 * n * k * tiled_rows(m, _TILE_ROWS)
        num_bytes = _BYTES * (n * k + m * (n + k))
    elif operator.kind == "decode_attention":
        sums = attention_sums(operator.kind, columns)
        flops, num_bytes = attention_work(columns, Precision(), *sums)
        blocks = columns["seqs"] * columns["kv_heads"]
        num_bytes = num_bytes * _decode_blocks(blocks, _num_sms(gpu)) / blocks
    elif operator.kind == "prefill_attention":
        flops, num_bytes = _prefill_blocks(columns, _num_sms(gpu))
        is_overlapped = False
    elif operator.kind == "elementwise":
        num_bytes = columns["rows"] * columns["bytes_per_row"]
        flops = np.zeros_like(num_bytes)
    else:
        if gpu.peer_bytes_per_s is None:
            raise ScenarioError(f"{gpu.name} has no known device-to-device link")
        bytes_per_s = gpu.peer_bytes_per_s
        num_bytes = 2 * (columns["ranks"] - 1) / columns["ranks"] * columns["bytes"]
        flops = np.zeros_like(num_bytes)
    return _PeakSeconds(
        compute_s=flops / flop_per_s,
        memory_s=num_bytes / bytes_per_s,
        is_overlapped=is_overlapped,
    )


def _num_sms(gpu: GpuSpec) -> int:
    if gpu.num_sms is None:
        raise ScenarioError(f"{gpu.name} has no known num_sms")
    return gpu.num_sms


def _decode_blocks(blocks: Array, num_sms: int) -> Array:
    """Blocks' worth of streaming time, the last wave no shorter than a block an SM."""
    slots = _BLOCKS_PER_SM * num_sms
    full = np.floor(blocks / slots) * slots
    last = blocks - full
    return full + np.where(last > 0, np.maximum(last, num_sms), 0.0)


def _prefill_blocks(columns: dict[str, Array], num_sms: int) -> tuple[Array, Array]:
    """FLOPs of whole waves of blocks, and bytes of the appended keys and values: ``[n]`` each."""
    new, prefix = columns["new_tokens"], columns["prefix_tokens"]
    tiles = np.ceil(new / _QUERY_TILE)
    tile_kv = np.empty_like(new)
    append_tokens = np.empty_like(new)
    for row, (count, tokens, cached) in enumerate(zip(tiles, new, prefix, strict=True)):
        # What the last query of each tile sees: of the new tokens, and in all.
        seen = np.minimum(_QUERY_TILE * np.arange(1, count + 1), tokens)
        append_tokens[row] = seen.sum()
        tile_kv[row] = (_KV_TILE * np.ceil((cached + seen) / _KV_TILE)).sum()
    heads = columns["seqs"] * columns["q_heads"]
    blocks = heads * tiles
    slots = _BLOCKS_PER_SM * num_sms
    waves = np.ceil(blocks / slots) * slots / blocks
    flops = 4 * columns["head_dim"] * heads * _QUERY_TILE * tile_kv * waves
    # Keys and values, read and written.
    return flops, 4 * _BYTES * columns["head_dim"] * heads * append_tokens
