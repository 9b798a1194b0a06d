"""Reads a Hugging Face ``config.json`` into a `ModelSpec`, or says why it cannot be priced.

Both the spellings of older files and of transformers 5 are read. A family whose attention is not
plain MHA/GQA over the whole context is refused by name: an approximation would look like an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodels.hf_fields import Fields
from costmodels.model_spec import DTYPE_BYTES, ModelSpec
from sim.errors import ScenarioError

_PLAIN_TYPES = ("llama", "mistral", "opt", "qwen2", "qwen3")
_EXPERT_WIDTH_IS_FFN_WIDTH = ("minimax_m2", "mixtral")
_MOE_TYPES = (*_EXPERT_WIDTH_IS_FFN_WIDTH, "qwen3_moe")
SUPPORTED_MODEL_TYPES = tuple(sorted((*_PLAIN_TYPES, *_MOE_TYPES)))

_BLOCK = [128, 128]
_NESTED = ("text_config", "llm_config")
_DTYPE_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}
_FULL_ATTENTION = ("full_attention", "attention")


def read_hf_config(
    config: Mapping[str, Any] | str | Path,
    *,
    name: str | None = None,
    confidence: str = "",
    source: str = "",
) -> ModelSpec:
    """Read a config given as a mapping, a ``config.json`` path, or the folder that holds one.

    Of a multimodal file the language model alone is read: its other towers are not in the spec.
    Raises `ScenarioError` for a file that is missing or not JSON, a field that is missing or of the
    wrong kind, and for an architecture outside `SUPPORTED_MODEL_TYPES`.
    """
    if isinstance(config, str | Path):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        values, where = _read_json(path), str(path)
        name = name or path.parent.name or path.stem
        source = source or f"config file {path.name}"
    else:
        values, where = config, f"config of {name or 'the model'}"
    fields = Fields(_text_part(values, where), where)
    _refuse_unsupported(fields)
    return _build(fields, name or str(values.get("_name_or_path") or "model"), confidence, source)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise ScenarioError(f"{path}: not a JSON file ({error})") from None
    if not isinstance(content, dict):
        raise ScenarioError(f"{path}: a config.json holds an object, not {type(content).__name__}")
    return content


def _text_part(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The language model's own fields; multimodal files nest them."""
    for key in _NESTED:
        if key in values:
            nested = values[key]
            if not isinstance(nested, Mapping):
                raise ScenarioError(f"{where}: field {key} must be an object")
            return nested
    return values


def _refuse_unsupported(fields: Fields) -> None:
    model_type = fields.first("model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise fields.error(
            f"model_type {model_type!r} is not supported: its attention or layers are not priced "
            f"by this cost model; supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    layer_types = fields.first("layer_types") or []
    if not isinstance(layer_types, list | tuple):
        raise fields.error(f"field layer_types must be a list, not {layer_types!r}")
    odd = sorted({str(kind) for kind in layer_types if kind not in _FULL_ATTENTION})
    if odd:
        raise fields.error(
            f"layer_types has {', '.join(odd)}; only full_attention layers are priced"
        )
    # Qwen files carry a window they do not use; in Mistral files a window is always in use.
    used = fields.flag("use_sliding_window", default=not str(model_type).startswith("qwen"))
    window = fields.first("sliding_window")
    if used and window is not None:
        raise fields.error(
            f"sliding_window {window} is in use: beyond it, attention reads the window and not the "
            "whole context, and a batch's context sum does not tell how many sequences are beyond "
            "it; set sliding_window to null if no context of the workload exceeds it"
        )


def _build(fields: Fields, name: str, confidence: str, source: str) -> ModelSpec:
    model_type = str(fields.first("model_type"))
    is_opt = model_type == "opt"
    layers = fields.count("num_hidden_layers")
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise fields.error(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    if fields.first("head_dim") is None and hidden % heads:
        raise fields.error(
            f"head_dim is absent and hidden_size {hidden} is not a multiple of "
            f"num_attention_heads {heads}; give head_dim"
        )
    if is_opt:
        _refuse_odd_opt(fields, hidden)
    if model_type == "minimax_m2":
        _refuse_odd_minimax(fields)
    positions = fields.count("max_position_embeddings")
    moe = _moe(fields, model_type, layers)
    dense_layers = layers - moe.get("num_moe_layers", 0)
    attention_bias = fields.flag("attention_bias", default=model_type == "qwen2")
    opt_bias = is_opt and fields.flag("enable_bias", default=True)
    dtype = _dtype(fields)
    return ModelSpec(
        name=name,
        model_type=model_type,
        num_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=fields.count("head_dim", default=hidden // heads),
        intermediate_size=fields.count("ffn_dim" if is_opt else "intermediate_size")
        if dense_layers
        else 0,
        vocab_size=fields.count("vocab_size"),
        max_position_embeddings=positions,
        ffn="plain" if is_opt else "gated",
        norm="layer" if is_opt else "rms",
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=is_opt),
        # Qwen2 has its bias on q, k and v alone; Llama's attention_bias covers o as well.
        qkv_bias=opt_bias or attention_bias,
        out_bias=opt_bias or (attention_bias and model_type != "qwen2"),
        ffn_bias=opt_bias or fields.flag("mlp_bias", default=False),
        qk_norm=model_type.startswith("qwen3") or model_type == "minimax_m2",
        qk_norm_all_heads=model_type == "minimax_m2",
        # OPT's position table starts at row 2.
        learned_position_rows=positions + 2 if is_opt else 0,
        dtype=dtype,
        linear_dtype=_fp8(fields) or dtype,
        kv_cache_dtype=dtype,
        confidence=confidence,
        source=source,
        **moe,
    )


def _refuse_odd_opt(fields: Fields, hidden: int) -> None:
    """OPT-350M projects its embeddings and norms after each block; no other OPT does."""
    projected = fields.count("word_embed_proj_dim", default=hidden) != hidden
    if projected or not fields.flag("do_layer_norm_before", default=True):
        raise fields.error(
            "word_embed_proj_dim unlike hidden_size, or do_layer_norm_before false (OPT-350M), "
            "is not supported"
        )


def _refuse_odd_minimax(fields: Fields) -> None:
    """MiniMax-M2 norms queries and keys over all heads and has no shared expert."""
    norm = fields.first("qk_norm_type")
    if not fields.flag("use_qk_norm", default=True) or norm not in (None, "per_layer"):
        raise fields.error(
            f"use_qk_norm must be true and qk_norm_type per_layer, not {norm!r}: another norm of "
            "queries and keys is not priced"
        )
    kinds = fields.first("attn_type_list") or []
    if not isinstance(kinds, list | tuple) or any(kind != 1 for kind in kinds):
        raise fields.error("attn_type_list must be a list of 1: only full attention is priced")
    if fields.first("shared_intermediate_size"):
        raise fields.error("shared_intermediate_size must be 0: a shared expert is not priced")


def _moe(fields: Fields, model_type: str, layers: int) -> dict[str, int]:
    if model_type not in _MOE_TYPES:
        return {}
    experts = fields.count("num_experts", "num_local_experts")
    top_k = fields.count("num_experts_per_tok")
    if top_k > experts:
        raise fields.error(f"num_experts_per_tok {top_k} exceeds the number of experts {experts}")
    if model_type in _EXPERT_WIDTH_IS_FFN_WIDTH:
        width, moe_layers = fields.count("intermediate_size"), layers
    else:
        width = fields.count("moe_intermediate_size")
        step = fields.count("decoder_sparse_step", default=1)
        dense = fields.first("mlp_only_layers") or []
        if not isinstance(dense, list | tuple):
            raise fields.error(f"field mlp_only_layers must be a list, not {dense!r}")
        moe_layers = sum(
            1 for layer in range(layers) if layer not in dense and (layer + 1) % step == 0
        )
    return {
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": width,
        "num_moe_layers": moe_layers,
    }


def _fp8(fields: Fields) -> str | None:
    """fp8: with a scale a tensor or a channel; fp8_block: a scale a block; None: not in fp8."""
    quantization = fields.first("quantization_config")
    if quantization is None:
        return None
    if not isinstance(quantization, Mapping):
        raise fields.error(f"field quantization_config must be an object, not {quantization!r}")
    method = quantization.get("quant_method") or "unnamed method"
    if method != "fp8":
        raise fields.error(
            f"quantization_config ({method}) is not supported yet; fp8 is, or use the bfloat16 or "
            "float16 checkpoint's config"
        )
    block = quantization.get("weight_block_size")
    if not block:
        return "fp8"
    if block != _BLOCK:
        raise fields.error(
            f"quantization_config.weight_block_size {block!r} is not supported: {_BLOCK} is"
        )
    return "fp8_block"


def _dtype(fields: Fields) -> str:
    """The checkpoint's 16-bit type. A float32 file is served in bfloat16, as engines do."""
    written = str(fields.first("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
    dtype = _DTYPE_ALIASES.get(written, written)
    if dtype == "float32":
        return "bfloat16"
    if dtype not in DTYPE_BYTES:
        raise fields.error(f"dtype {written!r} is not supported; use {' or '.join(DTYPE_BYTES)}")
    return dtype
