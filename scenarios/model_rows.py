"""What is known of each built-in model, as rows for people and programs."""

from __future__ import annotations

from typing import Any

from costmodels.models.catalog import load_model, model_names
from costmodels.models.spec import ModelSpec, quantised

# Formats that weights are commonly served in, beside the checkpoint's own.
_FORMATS = ("bfloat16", "fp8", "int4_g128", "mxfp4", "nvfp4")
_LABELS = {"V": "reported", "R": "assumed"}


def model_rows() -> list[dict[str, Any]]:
    """One row a built-in model; bytes are of the whole model, unsharded.

    ``weight_bytes`` are of the layers' matrices in each format with the rest in 16 bits, and
    ``checkpoint`` as published. State is of a bf16 cache, recurrent states in fp32.
    """
    return [_row(load_model(name)) for name in model_names()]


def _row(model: ModelSpec) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    for mixer, count in model.mixers:
        kinds[mixer.kind] = kinds.get(mixer.kind, 0) + count
    growing = model.growing_state_bytes_per_token
    return {
        "name": model.name,
        "layers": kinds,
        "total_params": model.total_params,
        "active_params": model.active_params,
        "weight_bytes": {
            "checkpoint": model.weight_bytes,
            **{name: quantised(model, linear=name).weight_bytes for name in _FORMATS},
        },
        "growing_state_bytes_per_token": int(growing)
        if growing.denominator == 1
        else float(growing),
        "fixed_state_bytes_per_sequence": model.fixed_state_bytes_per_sequence,
        "evidence": {
            "label": _LABELS[model.confidence[0]],
            "confidence": model.confidence,
            "source": model.source,
        },
    }


def model_lines() -> list[str]:
    """The same for people: one line a model."""
    lines = []
    for row in model_rows():
        size = f"{row['total_params'] / 1e9:.1f}B"
        if row["active_params"] < row["total_params"]:
            size += f" ({row['active_params'] / 1e9:.1f}B active)"
        line = f"{row['name']:45} {size:24} {row['growing_state_bytes_per_token']:>10,} bytes/token"
        if row["fixed_state_bytes_per_sequence"]:
            line += f" + {row['fixed_state_bytes_per_sequence'] / 1e6:,.1f} MB/sequence"
        lines.append(line)
    return lines
