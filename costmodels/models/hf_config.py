"""Reads a Hugging Face ``config.json`` into a `ModelSpec`, or says why it cannot.

Both the spellings of older files and those of transformers 5 are read. What differs between
families is in `costmodels.models.families`: a new one needs a function there, and a line in
`FAMILIES`. Any other family is refused by name, because an approximation would look like an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodels.datafile import read_json_object
from costmodels.fields import Fields
from costmodels.models.checkpoint_format import read_precision
from costmodels.models.families.decoder import Reader
from costmodels.models.families.experts import (
    read_glm4_moe,
    read_gpt_oss,
    read_llama4,
    read_minimax_m2,
    read_minimax_m3,
    read_mixtral,
    read_qwen_moe,
)
from costmodels.models.families.hybrid import (
    read_kimi,
    read_minimax,
    read_nemotron_h,
    read_qwen_next,
)
from costmodels.models.families.latent import read_deepseek, read_deepseek_ref, read_deepseek_v4
from costmodels.models.families.layer_list import read_layer_list
from costmodels.models.families.plain import (
    read_bloom,
    read_falcon,
    read_gemma,
    read_gemma4,
    read_llama,
    read_opt,
)
from costmodels.models.spec import ModelSpec
from sim.paths import is_file, is_folder

FAMILIES: dict[str, Reader] = {
    "bloom": read_bloom,
    "deepseek_ref": read_deepseek_ref,
    "deepseek_v2": read_deepseek,
    "deepseek_v3": read_deepseek,
    "deepseek_v32": read_deepseek,
    "deepseek_v4": read_deepseek_v4,
    "falcon": read_falcon,
    "gemma2": read_gemma,
    "gemma3": read_gemma,
    "gemma3_text": read_gemma,
    "gemma4": read_gemma4,
    "gemma4_text": read_gemma4,
    "glm4_moe": read_glm4_moe,
    "glm4_moe_lite": read_deepseek,
    "glm_moe_dsa": read_deepseek,
    "gpt_oss": read_gpt_oss,
    "kimi_k2": read_deepseek,
    "kimi_k3": read_kimi,
    "kimi_linear": read_kimi,
    "layers": read_layer_list,
    "llama": read_llama,
    "llama4_text": read_llama4,
    "minimax": read_minimax,
    "minimax_m1": read_minimax,
    "minimax_m2": read_minimax_m2,
    "minimax_m3": read_minimax_m3,
    "minimax_m3_vl": read_minimax_m3,
    "mistral": read_llama,
    "mixtral": read_mixtral,
    "nemotron_h": read_nemotron_h,
    "opt": read_opt,
    "qwen2": read_llama,
    "qwen2_moe": read_qwen_moe,
    "qwen3": read_llama,
    "qwen3_5": read_qwen_next,
    "qwen3_5_moe": read_qwen_next,
    "qwen3_5_moe_text": read_qwen_next,
    "qwen3_5_text": read_qwen_next,
    "qwen3_moe": read_qwen_moe,
    "qwen3_next": read_qwen_next,
    "qwen3_vl_moe_text": read_qwen_moe,
    "qwen3_vl_text": read_llama,
}
SUPPORTED_MODEL_TYPES = tuple(sorted(FAMILIES))

_NESTED = ("text_config", "llm_config")
# Names of fields in older files, and their current names.
_OLD_NAMES = {
    "n_embed": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "n_head_kv": "num_key_value_heads",
    "seq_length": "max_position_embeddings",
    "model_max_length": "max_position_embeddings",
}


def read_hf_config(
    config: Mapping[str, Any] | str | Path,
    *,
    name: str | None = None,
    confidence: str = "",
    source: str = "",
) -> ModelSpec:
    """Read a config given as a mapping, a ``config.json`` path, or the folder that holds one.

    Only the language model of a multimodal file is read: its other towers are not in the spec.
    Raises `ScenarioError` for a file that is missing or not JSON, a field that is missing or of the
    wrong kind, and for an architecture outside `SUPPORTED_MODEL_TYPES`.
    """
    if isinstance(config, str | Path):
        path = Path(config)
        path = path / "config.json" if is_folder(path) else path
        values, where = _with_modelopt(read_json_object(path), path), str(path)
        name = name or path.parent.name or path.stem
        source = source or f"config file {path.name}"
    else:
        values, where = config, f"config of {name or 'the model'}"
    fields = Fields(_completed(_text_part(values, where), values), where)
    return _build(fields, name or str(values.get("_name_or_path") or "model"), confidence, source)


def _text_part(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the language model's own fields; multimodal files nest them."""
    for key in _NESTED:
        if values.get(key) is not None:
            return Fields(values, where).part(key).values
    return values


def _completed(text: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add new names beside old ones, and the fields that multimodal files have outside the
    nested part."""
    outer = {
        key: whole[key]
        for key in ("quantization_config", "dtype", "torch_dtype")
        if key in whole and text.get(key) is None
    }
    renamed = {new: text[old] for old, new in _OLD_NAMES.items() if old in text and new not in text}
    typed = {"model_type": whole.get("model_type")} if "model_type" not in text else {}
    return {**text, **renamed, **outer, **typed}


def _with_modelopt(values: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Add ModelOpt's formats, which it writes to a separate file beside the config."""
    beside = path.with_name("hf_quant_config.json")
    if "quantization_config" in values or not is_file(beside):
        return values
    part = Fields(read_json_object(beside), str(beside)).part("quantization")
    return {**values, "quantization_config": {"quant_method": "modelopt", **part.values}}


def _build(fields: Fields, name: str, confidence: str, source: str) -> ModelSpec:
    model_type = fields.first("model_type")
    reader = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if reader is None:
        raise fields.error(
            f"model_type {model_type!r} is not supported: its attention or layers are not known to "
            f"this cost model; supported: {', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    decoder = reader(fields)
    return ModelSpec(
        name=name,
        model_type=str(model_type),
        layers=decoder.layers,
        hidden_size=fields.count("hidden_size"),
        vocab_size=fields.count("vocab_size"),
        max_position_embeddings=fields.count("max_position_embeddings"),
        norm=decoder.norm,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=decoder.tied),
        learned_position_rows=decoder.position_rows,
        extra_params=decoder.extra_params,
        residual=decoder.residual,
        mtp=decoder.mtp,
        precision=read_precision(fields, sum(group.count for group in decoder.layers)),
        confidence=confidence,
        source=source,
    )
