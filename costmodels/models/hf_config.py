"""Reads a Hugging Face ``config.json`` into a `ModelSpec`, or says why it cannot.

Both the spellings of older files and those of transformers 5 are read. What differs between
families is in `costmodels.models.families`. One whose fields are those of known layers is read by
rule, and needs a row of traits at most; others need a function there, and a line in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodels.datafile import read_json_object
from costmodels.fields import TEXT, Fields
from costmodels.models.checkpoint_format import format_notes, read_precision
from costmodels.models.families.by_rule import check_decoder, read_by_rule, with_defaults
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
from costmodels.models.towers import read_towers
from sim.errors import ScenarioError
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
    "minimax_text_01": read_minimax,
    "minimax_m3_vl": read_minimax_m3,
    "minimax_m3_vl_text": read_minimax_m3,
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

UNKNOWN_POSITIONS = 2048
"""Positions of a config that does not say them, as vLLM assumes."""
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
# Sizes that may be a list, one of a layer; all layers alike are read.
_LISTED = ("intermediate_size", "moe_intermediate_size", "moe_topk", "num_shared_expert")
# Parts of the layers' own, in the files of DBRX and MPT.
_INNER = ("attn_config", "ffn_config")
# Names of fields in older files, and their current names.
_OLD_NAMES = {
    "n_embed": "hidden_size",
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "n_head_kv": "num_key_value_heads",
    "kv_n_heads": "num_key_value_heads",
    "multi_query_group_num": "num_key_value_heads",
    "num_attention_groups": "num_key_value_heads",
    "kv_channels": "head_dim",
    "ffn_hidden_size": "intermediate_size",
    "n_inner": "intermediate_size",
    "padded_vocab_size": "vocab_size",
    "seq_length": "max_position_embeddings",
    "model_max_length": "max_position_embeddings",
    "n_positions": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "max_sequence_length": "max_position_embeddings",
}


def read_hf_config(
    config: Mapping[str, Any] | str | Path,
    *,
    name: str | None = None,
    confidence: str = "",
    source: str = "",
) -> ModelSpec:
    """Read a config given as a mapping, a ``config.json`` path, or the folder that holds one.

    Of a multimodal file the language model is read, and the towers of images and sounds.
    Raises `ScenarioError` for a file that is missing or not JSON, a field that is missing or of the
    wrong kind, and for an architecture whose layers its fields do not say.
    """
    if isinstance(config, str | Path):
        path = Path(config)
        path = path / "config.json" if is_folder(path) else path
        if path.name.endswith("hf_quant_config.json"):
            raise ScenarioError(
                f"{path}: this file has ModelOpt's formats alone; give the config.json beside it, "
                "or the folder that holds both"
            )
        values, where = _with_modelopt(read_json_object(path), path), str(path)
        name = name or (path.parent.name if path.name == "config.json" else "") or path.stem
        source = source or f"config file {path.name}"
    else:
        values, where = config, f"config of {name or 'the model'}"
    fields = Fields(_completed(_text_part(values, where), values), where)
    named = name or str(values.get("_name_or_path") or "model")
    return _with_towers(_build(fields, named, confidence, source), values, where)


def _with_towers(model: ModelSpec, values: Mapping[str, Any], where: str) -> ModelSpec:
    """Return the model with the towers whose parts the whole config has."""
    towers, notes = read_towers(values, where, model.hidden_size)
    return replace(model, towers=towers, notes=(*model.notes, *notes))


def _positions(fields: Fields) -> int:
    """Return the positions that a config has, scaled ones as vLLM derives them: the original ones
    times the factor, except where the config counts the scaled ones itself."""
    positions = fields.count("max_position_embeddings", default=UNKNOWN_POSITIONS)
    rope = fields.child("rope_scaling" if "rope_scaling" in fields else "rope_parameters")
    kind, factor = rope.first("rope_type", "type"), rope.first("factor")
    is_scaled = isinstance(factor, int | float) and kind in ("yarn", "linear", "dynamic")
    # Gemma 3 counts scaled positions itself.
    if not is_scaled or str(fields.first("model_type")).startswith("gemma3"):
        return positions
    if kind == "yarn":
        positions = rope.count("original_max_position_embeddings", default=positions)
    return int(positions * factor)


def _text_part(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the language model's own fields; multimodal files nest them."""
    for key in _NESTED:
        if values.get(key) is not None:
            inner = Fields(values, where).part(key).values
            return with_defaults(_text_part(inner, where))
    return values


def _completed(text: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add new names beside old ones, and the fields that multimodal files have outside the
    nested part."""
    outer = {
        key: whole[key]
        for key in ("quantization_config", "dtype", "torch_dtype", "tie_word_embeddings")
        if key in whole and text.get(key) is None
    }
    for key in _INNER:
        if isinstance(text.get(key), Mapping):
            text = {**text[key], **text}
    alike = {key: text[key][0] for key in _LISTED if _is_one_number(text.get(key))}
    text = {**text, **alike}
    renamed = {
        new: text[old]
        for old, new in _OLD_NAMES.items()
        if text.get(old) is not None and text.get(new) is None
    }
    typed = {"model_type": whole.get("model_type")} if "model_type" not in text else {}
    return {**text, **renamed, **outer, **typed}


def _is_one_number(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(one == value[0] for one in value)


def _with_modelopt(values: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Add ModelOpt's formats, which it writes to a separate file beside the config."""
    names = ["hf_quant_config.json"]
    if path.name.endswith("config.json"):
        names.append(f"{path.name.removesuffix('config.json')}hf_quant_config.json")
    beside = next((one for one in map(path.with_name, names) if is_file(one)), None)
    if "quantization_config" in values or beside is None:
        return values
    part = Fields(read_json_object(beside), str(beside)).part("quantization")
    return {**values, "quantization_config": {"quant_method": "modelopt", **part.values}}


def _build(fields: Fields, name: str, confidence: str, source: str) -> ModelSpec:
    model_type = fields.need(TEXT, "model_type", what="the name of an architecture")
    pooling = check_decoder(fields)
    decoder = FAMILIES.get(model_type, read_by_rule)(fields)
    precision = read_precision(fields, sum(group.count for group in decoder.layers))
    return ModelSpec(
        name=name,
        model_type=model_type,
        layers=decoder.layers,
        hidden_size=fields.count("hidden_size"),
        vocab_size=fields.count("vocab_size"),
        max_position_embeddings=_positions(fields),
        norm=decoder.norm,
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=decoder.tied),
        learned_position_rows=decoder.position_rows,
        extra_params=decoder.extra_params,
        residual=decoder.residual,
        mtp=decoder.mtp,
        precision=precision,
        confidence=confidence,
        source=source,
        notes=(*pooling, *decoder.notes, *format_notes(fields, precision, name)),
    )
