"""Reads a checkpoint's formats from ``quantization_config`` and ``hf_quant_config.json``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from costmodels.fields import Fields
from costmodels.formats import DTYPE_BYTES, ModelPrecision, load_format, precision_of

_BLOCK = [128, 128]
_DTYPE_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}
# Weight-only integer formats by (bits, group size; None: any other, as a scale a channel).
_INTEGER = {
    (4, 128): "int4_g128",
    (4, 64): "int4_g64",
    (4, 32): "int4_g32",
    (4, -1): "int4_channel",
    (4, None): "int4_channel",
    (3, 128): "int3_g128",
    (8, None): "w8a16",
}
_MODELOPT = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "FP8_PB_WO": "fp8_block",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "MXFP8": "mxfp8",
    "W4A16_AWQ": "int4_g128",
    "W4A16_NVFP4": "nvfp4_w4a16",
    "W8A16": "w8a16",
    "INT8_SQ": "int8",
}
# Families whose recurrent states vLLM 0.25 keeps in 32 bits if the config does not say; those of
# others are in the model's own type (mamba_ssm_cache_dtype auto).
_WIDE_STATES = ("kimi", "layers", "minimax", "nemotron_h", "qwen3_5")
_LAYER = re.compile(r"layers\.(\d+)\b")
# Parts of a layer that no quantization touches, whatever the config says of them.
_NEVER = re.compile(r"norm|bias|conv|router|indexer|vision|visual|mtp|(^|\.)gate(\.|\$|$)")
_CLASSES = ("attention", "ffn", "experts")
# Modules of a layer as most checkpoints name them: patterns are tried on these.
_MODULES = {
    "attention": [f"self_attn.{name}_proj" for name in ("q", "k", "v", "o")],
    "ffn": [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    + [f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")],
    "experts": [f"mlp.experts.0.{name}_proj" for name in ("gate", "up", "down")],
}
_NAMED_FORMAT = re.compile(
    r"(?<![a-z0-9])(nvfp4|mxfp4|mxfp8|fp8|fp4|awq|gptq|int4|int8|w4a16|w8a8|w8a16)(?![a-z0-9])"
)


class Stored(NamedTuple):
    """The format of a module's weights."""

    weights: str
    activations: str | None = None
    """Format that its activations are multiplied in; None: as ``weights`` asks for."""


def read_precision(fields: Fields, num_layers: int) -> ModelPrecision:
    """Return the precision of a config. Raises `ScenarioError` for an unknown method or group
    size."""
    precision = precision_of(_dtype(fields))
    precision = replace(precision, state=_state_dtype(fields, precision.dtype))
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


def format_notes(fields: Fields, precision: ModelPrecision, file_name: str) -> tuple[str, ...]:
    """Return sentences on formats that a reader would not expect: a cache that the checkpoint
    asks for, and a file whose name says a format that its content does not."""
    found = []
    if precision.kv != precision.dtype:
        found.append(f"keys and values are {precision.kv}: the checkpoint asks for it")
    named = _NAMED_FORMAT.search(file_name.casefold())
    if named and "quantization_config" not in fields and "expert_dtype" not in fields:
        found.append(
            f"{file_name}: its name says {named.group()}, but it has no quantization_config, so "
            f"weights are counted in {precision.dtype}; ModelOpt writes formats to a second file: "
            "put hf_quant_config.json beside it, or set engine.quantization"
        )
    return tuple(found)


def _quantized(precision: ModelPrecision, part: Fields, num_layers: int) -> ModelPrecision:
    method = str(part.first("quant_method") or _unnamed(part)).lower().replace("_", "-")
    if method in _UNQUANTIZED:
        return precision
    reader = _METHODS.get(method)
    if reader is None:
        raise part.error(f"method {method} is not supported; known: {', '.join(_METHODS)}")
    precision = _with_cache(precision, part)
    if part.first("quantized_layers"):
        # Modules that are not listed are in fp8 where the method says so, else in 16 bits.
        base = precision.with_matrices(reader(part).weights) if method == "fp8" else precision
        return _mixed(base, part)
    if method == "compressed-tensors":
        return _by_targets(precision, _schemes(part), _kept(part), num_layers)
    if method == "quark":
        return _by_targets(precision, _quark_schemes(part), _kept(part), num_layers)
    stored, kept = reader(part), _kept(part)
    if method == "mxfp4" and not kept:
        kept = ["self_attn"]
    return _with_classes(precision, stored, _plain_classes(kept, num_layers))


def _with_classes(
    precision: ModelPrecision, stored: Stored, plain: Iterable[str]
) -> ModelPrecision:
    changed = {name: stored.weights for name in _CLASSES if name not in plain}
    return replace(precision, activations=stored.activations, **changed)


def _with_cache(precision: ModelPrecision, part: Fields) -> ModelPrecision:
    stated = part.first("kv_cache_quant_algo", "kv_cache_scheme", "kv_cache_quant_method")
    stated = stated or part.child("global_quant_config").first("output_tensors_kv")
    if isinstance(stated, Mapping):
        is_fp8 = stated.get("type") == "float" and stated.get("num_bits") == 8
    else:
        is_fp8 = str(stated).lower() == "fp8"
    for name, layer in part.child("layer_quant_config").values.items():  # Quark
        outputs = layer.get("output_tensors") if isinstance(layer, Mapping) else None
        if "k_proj" in name and isinstance(outputs, Mapping):
            is_fp8 = is_fp8 or "fp8" in str(outputs.get("dtype"))
    return replace(precision, kv="fp8") if is_fp8 else precision


def _unnamed(part: Fields) -> str:
    if part.first("config_groups"):
        return "compressed-tensors"
    return "modelopt" if part.first("quant_algo") else "unnamed method"


def _kept(part: Fields) -> list[str]:
    """Return the names and patterns of modules that stay in 16 bits, of every method."""
    found = part.items(
        *("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"),
        *("exclude", "llm_int8_skip_modules", "modules_to_not_quantize"),
    )
    # GPTQModel excludes with -: before a pattern; AutoRound gives modules 16 bits.
    found += [f"re:{name[2:]}" for name in part.child("dynamic").values if name.startswith("-:")]
    extra = part.child("extra_config").values
    found += [n for n, one in extra.items() if isinstance(one, Mapping) and one.get("bits") == 16]
    return [str(name) for name in found]


def _mixed(precision: ModelPrecision, part: Fields) -> ModelPrecision:
    """Return the precision with each class in the format of most of its listed modules."""
    listed = part.part("quantized_layers")
    found: dict[str, Counter[str]] = {}
    for name in listed.values:
        stored = _modelopt(listed.part(name))
        for kind in _classes_of(name):
            found.setdefault(kind, Counter())[stored.weights] += 1
    changed = {kind: counts.most_common(1)[0][0] for kind, counts in found.items()}
    return replace(precision, **changed)


def _by_targets(
    precision: ModelPrecision,
    schemes: list[tuple[list[str], Stored]],
    kept: list[str],
    num_layers: int,
) -> ModelPrecision:
    """Return the precision with each class in the format of the first scheme that has most of its
    modules as targets."""
    plain, changed = _plain_classes(kept, num_layers), dict[str, str]()
    activations = None
    for targets, stored in schemes:
        for name in _CLASSES:
            is_met = any(_is_all(target) for target in targets)
            is_met = is_met or name in _plain_classes(targets, num_layers)
            if is_met and name not in changed and name not in plain:
                changed[name] = stored.weights
                activations = stored.activations or activations
    return replace(precision, activations=activations, **changed)


def _is_all(target: str) -> bool:
    """Return whether a target is a class of modules, such as Linear, or everything."""
    return target == "*" or (target.isidentifier() and target[0].isupper())


def _fp8(part: Fields) -> Stored:
    block = part.first("weight_block_size")
    if not block:
        return Stored("fp8")
    if list(block) != _BLOCK:
        raise part.error(f"weight_block_size {block!r} is not supported: {_BLOCK} is")
    return Stored("fp8_block")


def _weight_only(part: Fields) -> Stored:
    group = part.first("group_size", "q_group_size")
    return Stored(_integer(part, part.count("bits", "w_bit"), group))


def _bitsandbytes(part: Fields) -> Stored:
    if part.flag("load_in_8bit", default=False) or part.flag("_load_in_8bit", default=False):
        return Stored("int8")
    return Stored("nf4")


def _integer(part: Fields, bits: int, group: Any) -> str:
    found = _INTEGER.get((bits, group)) or _INTEGER.get((bits, None) if bits != 4 else (0, 0))
    if found is None:
        known = "; ".join(f"{b} bits in groups of {g or 'any size'}" for b, g in _INTEGER)
        raise part.error(f"{bits} bits in groups of {group} are not supported; {known} are")
    return found


def _schemes(part: Fields) -> list[tuple[list[str], Stored]]:
    """Return the targets and formats of each of compressed-tensors' groups."""
    groups = part.part("config_groups")
    if not groups.values:
        raise groups.error("has no group; one is needed")
    found = []
    for name in groups.values:
        scheme = groups.part(name)
        targets = [str(target) for target in scheme.items("targets")] or ["Linear"]
        found.append((targets, _compressed_tensors(scheme)))
    return found


def _compressed_tensors(scheme: Fields) -> Stored:
    weights = scheme.part("weights")
    bits, group = weights.count("num_bits"), weights.first("group_size")
    is_float = weights.first("type") == "float"
    narrow = scheme.child("input_activations").first("num_bits")
    if bits == 8:
        if not is_float:
            return Stored("int8" if narrow == 8 else "w8a16")
        if group == 32:
            return Stored("mxfp8")
        return Stored("fp8_block" if weights.first("block_structure") else "fp8")
    if not is_float:
        if narrow == 8:
            return Stored("w4a8_channel" if group in (None, -1) else "w4a8_g128")
        return Stored(_integer(weights, bits, group))
    if group not in (16, 32):
        raise weights.error(f"fp4 in groups of {group} is not supported")
    if group == 16:
        return (
            Stored("nvfp4" if narrow == 4 else "nvfp4_w4a16")
            if narrow != 8
            else Stored("nvfp4", "fp8")
        )
    return Stored("mxfp4", {8: "mxfp8"}.get(narrow or 0))


def _quark_schemes(part: Fields) -> list[tuple[list[str], Stored]]:
    """Return AMD Quark's formats: those of patterns of layers first, then the one of all others."""
    found = []
    layers = part.child("layer_quant_config")
    for pattern in layers.values:
        if layers.part(pattern).first("weight"):
            found.append(([pattern], _quark(layers.part(pattern))))
    whole = part.part("global_quant_config")
    return [*found, (["*"], _quark(whole))]


def _quark(scheme: Fields) -> Stored:
    weights, inputs = scheme.part("weight"), scheme.child("input_tensors")
    dtype, group = str(weights.first("dtype")), weights.first("group_size")
    if dtype.startswith("fp8"):
        return Stored("fp8")
    if dtype in ("fp4", "mx", "fp4_e2m1", "mxfp4"):
        narrow = str(inputs.first("dtype") or "")
        return Stored("mxfp4", "mxfp4" if narrow.startswith(("fp4", "mx")) else None)
    bits = re.search(r"int(\d+)", dtype)
    if bits is None:
        raise weights.error(f"dtype {dtype!r} is not supported; fp8, fp4, int8 and int4 are")
    if bits.group(1) == "8" and str(inputs.first("dtype")).startswith("int8"):
        return Stored("int8")
    return Stored(_integer(weights, int(bits.group(1)), group))


def _modelopt(part: Fields) -> Stored:
    algorithm = part.first("quant_algo")
    if algorithm is None and part.first("config_groups"):
        return _schemes(part)[0][1]
    if algorithm not in _MODELOPT:
        known = ", ".join(_MODELOPT)
        raise part.error(f"quant_algo {algorithm!r} is not supported; known: {known}")
    return Stored(_MODELOPT[str(algorithm)])


_UNQUANTIZED = ("none", "unquantized")
_METHODS: dict[str, Callable[[Fields], Stored]] = {
    "fp8": _fp8,
    "fbgemm-fp8": lambda part: Stored("fp8"),
    "mxfp4": lambda part: Stored("mxfp4"),
    "awq": _weight_only,
    "awq-marlin": _weight_only,
    "gptq": _weight_only,
    "gptq-marlin": _weight_only,
    "auto-round": _weight_only,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": lambda part: _schemes(part)[0][1],
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt,
    "quark": lambda part: _quark_schemes(part)[-1][1],
    "experts-int8": lambda part: Stored("w8a16"),
}


def _plain_classes(kept: list[str], layers: int) -> set[str]:
    """Return the classes of matrices that a list of modules leaves as they are.

    A name with a layer's number counts for that layer only, a pattern (re:) for the layers with a
    module that it matches: more than half of all layers must be named.
    """
    named: dict[str, set[str]] = {}
    for name in kept:
        matched = _matched(name[3:], layers) if name.startswith("re:") else {}
        for kind, numbers in matched.items():
            named.setdefault(kind, set()).update(numbers)
        for kind in () if matched else _classes_of(name):
            found = _LAYER.search(name)
            named.setdefault(kind, set()).add(found.group(1) if found else "all")
    return {
        kind for kind, numbers in named.items() if "all" in numbers or 2 * len(numbers) > layers
    }


def _matched(pattern: str, layers: int) -> dict[str, set[str]]:
    """Return the layers, by class, most of whose modules a pattern matches."""
    try:
        compiled = re.compile(pattern)
    except re.error:
        return {}
    found: dict[str, set[str]] = {}
    for kind, modules in _MODULES.items():
        for layer in range(layers):
            names = [f"model.layers.{layer}.{module}" for module in modules]
            if 2 * sum(compiled.match(name) is not None for name in names) >= len(names):
                found.setdefault(kind, set()).add(str(layer))
    return found


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


def _state_dtype(fields: Fields, dtype: str) -> str:
    stated = fields.first("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    if stated is None:
        is_wide = str(fields.first("model_type")).startswith(_WIDE_STATES)
        return "float32" if is_wide else dtype
    found = _DTYPE_ALIASES.get(str(stated), str(stated))
    return found if found in ("float32", *DTYPE_BYTES) else dtype


def _dtype(fields: Fields) -> str:
    """Return the checkpoint's 16-bit type. A float32 file is served in bfloat16, as engines do."""
    written = str(fields.first("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
    dtype = _DTYPE_ALIASES.get(written, written)
    if dtype == "float32":
        return "bfloat16"
    if dtype not in DTYPE_BYTES:
        raise fields.error(f"dtype {written!r} is not supported; use {' or '.join(DTYPE_BYTES)}")
    return dtype
