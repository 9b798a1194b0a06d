"""Invented lines of kernel timings, in the format of `calibrate.measure`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.hardware.gpus import load_gpu
from costmodels.tables.ideal import ideal_seconds
from costmodels.tables.kinds import KINDS, VARIANTS, Precision, TableKind

H200 = load_gpu("H200")
MACHINE = {
    "kind": "machine",
    "id": "0123456789ab",
    "device": "NVIDIA H200",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "cuda": "13.0",
    "sms": 132,
    "date": "2026-11-30T12:00:00Z",
}
BF16 = {"activations": "bfloat16", "weights": "bfloat16", "kv": "bfloat16"}
STATE = {"activations": "bfloat16", "state": "float32"}
POWERS = [2**p for p in range(14)]
HEADS = {"q_heads": [8, 32], "kv_heads": [8]}
PRECISIONS = dict.fromkeys(("kda", "gdn"), Precision(kv="float32"))
GRIDS: dict[str, dict[str, list[Any]]] = {
    "gemm": {
        "m": POWERS,
        "n": [4096, 6144, 28672, 128256],
        "k": [4096, 14336],
    },
    "grouped_gemm": {
        "hidden": [2048],
        "inter": [768],
        "top_k": [8],
        "num_experts": [128],
        "tp": [1],
        "ep": [1],
        "tokens": POWERS,
        "routing": ["balanced"],
    },
    "prefill_attention": {
        "head_dim": [64, 128, 256],
        "window": [0],
        **HEADS,
        "new_tokens": [128, 512, 2048, 8192],
        "prefix_tokens": [0, 2048, 8192],
        "seqs": [1, 4],
    },
    "decode_attention": {
        "head_dim": [64, 128, 256],
        "window": [0],
        **HEADS,
        "seqs": [1, 4, 16, 64, 256, 1024],
        "context_tokens": [128, 512, 2048, 8192],
    },
    "mla_decode": {
        "heads": [16, 128],
        "kv_lora_rank": [512],
        "rope_dim": [64],
        "seqs": [1, 4, 16, 64, 256, 1024],
        "context_tokens": [128, 512, 2048, 8192],
    },
    "elementwise": {
        "op": ["add_rms_norm", "rotary", "silu_mul", "kv_write", "residual_add", "quantise_fp8"],
        "rows": POWERS,
        "width": [1024, 4096, 14336],
    },
    "embedding": {"rows": POWERS, "width": [2048, 4096], "vocab": [128256, 151936]},
    "sampling": {"op": ["greedy", "random"], "rows": POWERS[:11], "vocab": [128256, 151936]},
    "all_reduce": {"ranks": [2, 8], "bytes": [2**p for p in range(10, 29)]},
    "all_gather": {"ranks": [2, 8], "bytes": [2**p for p in range(10, 29)]},
    "reduce_scatter": {"ranks": [2, 8], "bytes": [2**p for p in range(10, 29)]},
    "send_recv": {"ranks": [2], "bytes": [2**p for p in range(10, 29)]},
}
for _kind in ("kda", "gdn"):
    _heads = {"heads": [16, 32], "head_k_dim": [128], "head_v_dim": [128]}
    GRIDS[f"{_kind}_recurrent"] = {**_heads, "seqs": POWERS[:11], "tokens": [1]}
    GRIDS[f"{_kind}_chunk"] = {**_heads, "seqs": [1, 4], "tokens": [64, 512, 2048, 8192]}


def timing(
    family: TableKind, shape: Mapping[str, Any], seconds: float, **fields: Any
) -> dict[str, Any]:
    """Return one line of a timing."""
    return {
        "kind": "timing",
        "machine": MACHINE["id"],
        "family": family,
        "kernel": "torch",
        "formats": STATE if family[:3] in ("kda", "gdn") else BF16,
        "shape": dict(shape),
        "seconds": seconds,
        "seconds_low": seconds,
        "seconds_high": seconds,
        "repeats": 5,
        "calls": 4,
        "graph": True,
        "error": 1e-3,
        "flops": 1.0,
        "bytes": 4.0 * shape.get("width", 0) * shape.get("rows", 1),
        **fields,
    }


def made_lines(*families: str, scale: float = 1.0, slope: float = 0.03) -> list[dict[str, Any]]:
    """A grid of every family asked for: a fixed time, and half the roofline's speed."""
    lines: list[dict[str, Any]] = [MACHINE]
    for family in families:
        lines += _family(family, scale, slope)  # type: ignore[arg-type]
    return lines


def _family(family: TableKind, scale: float, slope: float) -> Iterator[dict[str, Any]]:
    grid = GRIDS[family]
    for values in product(*grid.values()):
        shape = dict(zip(grid, values, strict=True))
        columns = {
            name: np.array([float(value)]) for name, value in shape.items() if type(value) is int
        }
        if family == "elementwise":
            columns["bytes_per_row"] = 4 * columns.pop("width")
        variant = str(shape.get(VARIANTS.get(family, ""), ""))
        precision = PRECISIONS.get(family[:3], Precision())
        ideal_s = ideal_seconds(family, columns, H200, precision, variant)[0]
        work = float(np.prod([columns[name][0] for name in KINDS[family].axes if columns[name][0]]))
        yield timing(family, shape, scale * (2e-6 + 2 * ideal_s * work**-slope))


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    """Write the lines to a file."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
