"""Reads a checkpoint's formats from ``quantization_config`` and ``hf_quant_config.json``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodels.fields import Fields
from costmodels.formats import DTYPE_BYTES, ModelPrecision, load_format, precision_of

_BLOCK = [128, 128]
_DTYPE_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}
# Weight-only integer formats by (bits, group size; None: any other).
_INTEGER = {
    (4, 128): "int4_g128",
    (4, 32): "int4_g32",
    (3, 128): "int3_g128",
    (8, None): "w8a16",
}
_MODELOPT = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "MXFP8": "mxfp8",
    "W4A16_AWQ": "int4_g128",
    "W4A16_NVFP4": "nvfp4_w4a16",
}
_LAYER = re.compile(r"layers\.(\d+)\b")
# Parts of a layer that no quantization touches, whatever the config says of them.
_NEVER = re.compile(r"norm|bias|conv|router|indexer|vision|visual|mtp|(^|\.)gate(\.|\$|$)")


def read_precision(fields: Fields, num_layers: int) -> ModelPrecision:
    """Return the precision of a config. Raises `ScenarioError` for an unknown method or group
    size."""
    precision = precision_of(_dtype(fields))
    if "quantization_config" in fields:
        precision = _quantized(precision, fields.part("quantization_config"), num_layers)
    expert_dtype = fields.first("expert_dtype")
    if expert_dtype == "fp4" and load_format(precision.experts).bits == 4:
        return precision
    if expert_dtype == "fp4":
        precision = replace(precision, experts="mxfp4", activations="fp8")
    elif expert_dtype is not None:
        raise fields.error(f"expert_dtype {expert_dtype!r} is not supported: fp4 is")
    return precision


def _quantized(precision: ModelPrecision, part: Fields, num_layers: int) -> ModelPrecision:
    method = str(part.first("quant_method") or _unnamed(part))
    reader = _METHODS.get(method)
    if reader is None:
        raise part.error(f"method {method} is not supported; known: {', '.join(_METHODS)}")
    if part.first("quantized_layers"):
        # Modules that are not listed are in fp8 where the method says so, else in 16 bits.
        base = precision.with_matrices(reader(part)[0]) if method == "fp8" else precision
        return _mixed(base, part)
    weights, activations = reader(part)
    kept = part.items("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
    if method == "mxfp4" and not kept:
        kept = ["self_attn"]
    classes = _plain_classes([str(name) for name in kept], num_layers)
    changed = {name: weights for name in ("attention", "ffn", "experts") if name not in classes}
    return replace(_with_cache(precision, part), activations=activations, **changed)


def _with_cache(precision: ModelPrecision, part: Fields) -> ModelPrecision:
    stated = part.first("kv_cache_quant_algo", "kv_cache_scheme")
    if isinstance(stated, Mapping):
        is_fp8 = stated.get("type") == "float" and stated.get("num_bits") == 8
    else:
        is_fp8 = stated in ("FP8", "fp8")
    return replace(precision, kv="fp8") if is_fp8 else precision


def _unnamed(part: Fields) -> str:
    if part.first("config_groups"):
        return "compressed-tensors"
    return "modelopt" if part.first("quant_algo") else "unnamed method"


def _mixed(precision: ModelPrecision, part: Fields) -> ModelPrecision:
    """Return the precision with each class in the format of most of its listed modules."""
    listed = part.part("quantized_layers")
    found: dict[str, Counter[str]] = {}
    for name in listed.values:
        weights, _ = _modelopt(listed.part(name))
        for kind in _classes_of(name):
            found.setdefault(kind, Counter())[weights] += 1
    changed = {kind: counts.most_common(1)[0][0] for kind, counts in found.items()}
    return replace(_with_cache(precision, part), **changed)


def _fp8(part: Fields) -> tuple[str, str | None]:
    block = part.first("weight_block_size")
    if not block:
        return "fp8", None
    if list(block) != _BLOCK:
        raise part.error(f"weight_block_size {block!r} is not supported: {_BLOCK} is")
    return "fp8_block", None


def _weight_only(part: Fields) -> tuple[str, str | None]:
    group = part.first("group_size", "q_group_size")
    return _integer(part, part.count("bits", "w_bit"), group), None


def _integer(part: Fields, bits: int, group: Any) -> str:
    found = _INTEGER.get((bits, group)) or _INTEGER.get((bits, None))
    if found is None:
        known = "; ".join(f"{b} bits in groups of {g or 'any size'}" for b, g in _INTEGER)
        raise part.error(f"{bits} bits in groups of {group} are not supported; {known} are")
    return found


def _compressed_tensors(part: Fields) -> tuple[str, str | None]:
    groups = part.part("config_groups")
    if not groups.values:
        raise groups.error("has no group; one is needed")
    scheme = groups.part(next(iter(groups.values)))
    weights = scheme.part("weights")
    bits, group = weights.count("num_bits"), weights.first("group_size")
    is_float = weights.first("type") == "float"
    narrow = scheme.child("input_activations").first("num_bits")
    if bits == 8:
        if is_float:
            return ("mxfp8" if group == 32 else "fp8"), None
        return ("int8" if narrow == 8 else "w8a16"), None
    if not is_float:
        return _integer(part, bits, group), None
    if group not in (16, 32):
        raise part.error(f"fp4 in groups of {group} is not supported")
    wide = {4: "nvfp4", 8: "mxfp8" if group == 32 else "fp8"}.get(narrow or 0)
    return ("nvfp4" if group == 16 else "mxfp4"), wide


def _modelopt(part: Fields) -> tuple[str, str | None]:
    algorithm = part.first("quant_algo")
    if algorithm not in _MODELOPT:
        known = ", ".join(_MODELOPT)
        raise part.error(f"quant_algo {algorithm!r} is not supported; known: {known}")
    return _MODELOPT[str(algorithm)], None


_METHODS = {
    "fp8": _fp8,
    "mxfp4": lambda part: ("mxfp4", None),
    "awq": _weight_only,
    "gptq": _weight_only,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
}


def _plain_classes(kept: list[str], layers: int) -> set[str]:
    """Return the classes of matrices that a list of modules leaves as they are.

    A name with a layer's number counts for that layer only: more than half of all layers must be
    named.
    """
    named: dict[str, set[str]] = {}
    for name in kept:
        for kind in _classes_of(name):
            found = _LAYER.search(name)
            named.setdefault(kind, set()).add(found.group(1) if found else "all")
    return {
        kind for kind, numbers in named.items() if "all" in numbers or 2 * len(numbers) > layers
    }


def _classes_of(name: str) -> list[str]:
    if _NEVER.search(name):
        return []
    if "shared_expert" in name:
        return ["ffn"]
    if "expert" in name:
        return ["experts"]
    if "attn" in name or "attention" in name or ".mixer." in name:
        return ["attention"]
    return ["ffn"] if "mlp" in name or ".ffn" in name else []


def _dtype(fields: Fields) -> str:
    """Return the checkpoint's 16-bit type. A float32 file is served in bfloat16, as engines do."""
    written = str(fields.first("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
    dtype = _DTYPE_ALIASES.get(written, written)
    if dtype == "float32":
        return "bfloat16"
    if dtype not in DTYPE_BYTES:
        raise fields.error(f"dtype {written!r} is not supported; use {' or '.join(DTYPE_BYTES)}")
    return dtype
