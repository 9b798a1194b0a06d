"""Decoders read by the fields of their config alone: what has Llama's fields is priced as Llama is.

Attention (grouped, latent, over windows), what stands in its place (Mamba, Gated DeltaNet, Kimi
delta attention, short convolutions), dense FFNs and experts are told by their fields, in all
spellings. ``rules.yaml`` says what a family has that its fields do not say. A model_type that is in
no table is read alike, with a note, unless it has fields of layers that are not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from costmodels.datafile import read_data
from costmodels.fields import Fields
from costmodels.models.families.decoder import (
    EXPERTS,
    Decoder,
    gqa,
    grouped,
    moe,
    moe_layers,
    mtp_layers,
    windowed,
)
from costmodels.models.families.latent import connection_params, connections, latent_mixers, mla
from costmodels.models.families.linear import linear_mixer
from costmodels.models.layers.dense import Dense
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.layers.short_conv import ShortConv

_FILE = "models/families/rules.yaml"
_FULL = ("full_attention", "attention", "global_attention", "full", "attn", "a")
_SLIDING = ("sliding_attention", "chunked_attention", "local_attention", "sliding", "local")
_LINEAR = ("linear_attention", "mamba", "recurrent", "ssm", "m")
_CONV = ("conv", "short_conv")
_NONE = "no_op"
Rule = Mapping[str, Any]


def rule_of(model_type: str) -> Rule | None:
    """Return the traits of a family of ``rules.yaml``; None: it is in no row."""
    found: Rule | None = read_data(_FILE)["families"].get(model_type)
    return found


def with_defaults(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a multimodal config with the sizes that it leaves to its
    family's defaults."""
    known = read_data(_FILE)["defaults"].get(part.get("model_type"), {})
    given = {name: value for name, value in part.items() if value is not None}
    return {**known, **part, **given} if known else part


def check_decoder(fields: Fields) -> tuple[str, ...]:
    """Return notes on a config whose model answers no tokens. Raises `ScenarioError`, with what
    would work, for models that do not decode."""
    model_type = str(fields.first("model_type"))
    named = [str(name) for name in fields.items("architectures")]
    data = read_data(_FILE)
    for row in data["refused"]:
        if model_type in row["types"] or any(name.endswith(tuple(row["ends"])) for name in named):
            kind = named[0] if named else model_type
            raise fields.error(
                f"model_type {model_type!r} ({kind}) is {row['what']}: {row['instead']}"
            )
    pooling = [name for name in named if name.endswith(tuple(data["pooling"]))]
    if not pooling:
        return ()
    return (f"{pooling[0]} answers with a vector or score: set output_tokens 1 to price prompts",)


def read_by_rule(fields: Fields) -> Decoder:
    """Read any decoder whose fields say its layers. Raises `ScenarioError` if they do not."""
    model_type = str(fields.first("model_type"))
    rule = rule_of(model_type)
    notes = _factor_notes(fields)
    if rule is None:
        _check_known(fields, model_type)
        rule = {}
        notes = (_note(model_type, fields), *notes)
    if rule.get("doubled"):
        return _doubled(fields, rule, notes)
    fields, more_experts = _of_text(fields)
    mixers, ffns = _mixers(fields, rule), _ffns(fields, rule)
    is_parallel = rule.get("parallel", False)
    for key in ("use_parallel_residual", "parallel_attn", "parallel_attn_mlp_res"):
        is_parallel = fields.flag(key, default=is_parallel)
    norms = rule.get("norms", 2)
    layers = list(zip(mixers, ffns, strict=True))
    beside = _beside(fields, mixers)
    parts = (
        *grouped(layers, norms=norms, all_reduces=1 if is_parallel else 2),
        *grouped(((mixer, None) for mixer in beside), norms=0, all_reduces=1),
    )
    positions = fields.count("max_position_embeddings") if rule.get("positions") else 0
    return Decoder(
        layers=parts,
        norm="layer" if rule.get("norm") == "layer" else "rms",
        tied=rule.get("tied", False),
        position_rows=positions,
        extra_params=connection_params(fields, len(layers)) + more_experts,
        residual=connections(fields.optional_count("hc_mult")),
        mtp=mtp_layers(fields, layers[-1], "num_nextn_predict_layers"),
        notes=notes,
    )


def _doubled(fields: Fields, rule: Rule, notes: tuple[str, ...]) -> Decoder:
    """Read LongCat: a layer is two of latent attention and dense FFN, with experts beside them.

    Tokens also choose among experts that do nothing; of their choices the others' share counts.
    """
    count = fields.count("num_hidden_layers")
    attention, experts = mla(fields), _experts(fields, rule)
    idle = fields.optional_count("zero_expert_num")
    real = round(experts.top_k * experts.num_experts / (experts.num_experts + idle))
    if idle:
        notes = (
            *notes,
            f"of {experts.top_k} experts a token, {real} have weights, as they choose evenly among "
            f"{experts.num_experts} with and {idle} without",
        )
    plain = _dense(fields, rule)
    layers: list[tuple[Mixer | None, Ffn | None]] = [(attention, plain)] * (2 * count)
    parts = grouped(layers), grouped([(None, replace(experts, top_k=real))] * count, norms=0)
    return Decoder(layers=(*parts[0], *parts[1]), notes=notes)


def _of_text(fields: Fields) -> tuple[Fields, int]:
    """Return the fields with the experts of text, where ERNIE-4.5-VL lists others for images
    behind them, and the parameters of those others."""
    counts, widths = fields.first("moe_num_experts"), fields.first("moe_intermediate_size")
    if not (isinstance(counts, list) and isinstance(widths, list)):
        return fields, 0
    of_text = {
        name: value[0] if name.startswith("moe_") and isinstance(value, list) else value
        for name, value in fields.values.items()
    }
    fields = replace(fields, values=of_text)
    others = sum(count * width for count, width in zip(counts[1:], widths[1:], strict=True))
    return fields, 3 * others * fields.count("hidden_size") * sum(moe_layers(fields))


def _note(model_type: str, fields: Fields) -> str:
    experts = " and experts" if _has_experts(fields) else ""
    return (
        f"model_type {model_type} is not known: its layers are taken to be Llama's in shape, "
        f"attention and gated FFNs{experts} of the sizes that its config gives"
    )


def _factor_notes(fields: Fields) -> tuple[str, ...]:
    named = [
        key
        for key, value in fields.values.items()
        if any(part in key for part in read_data(_FILE)["factors"])
        and isinstance(value, float)
        and value not in (0.0, 1.0)
    ]
    if not named:
        return ()
    return (f"{', '.join(sorted(named))}: factors of values, which cost nothing, are left out",)


def _check_known(fields: Fields, model_type: str) -> None:
    """Raise `ScenarioError` if a config of an unknown family has layers that no rule reads."""
    parts = read_data(_FILE)["foreign"]
    known = ("linear_", "mamba_") if fields.items("layer_types") else ()
    foreign = sorted(
        key
        for key, value in fields.values.items()
        if value not in (None, False, 0)
        and any(part in key for part in parts)
        and not key.startswith(known)
    )
    lacking = [
        key
        for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
        if key not in fields
    ]
    if lacking and fields.first("text_model_id"):
        raise fields.error(
            f"its language model is {fields.first('text_model_id')}: give that (text_model_id)"
        )
    if foreign or lacking:
        what = f"fields of layers that are not known here ({', '.join(foreign)})" if foreign else ""
        lack = f"none of the fields {', '.join(lacking)}" if lacking else ""
        raise fields.error(
            f"model_type {model_type!r} is not supported: it has "
            f"{' and '.join(filter(None, (what, lack)))}. Such a model can be described as a list "
            "of layers: model_type: layers, and layers, each a mixer and an ffn by kind "
            "(docs/extending.md)"
        )


def _mixers(fields: Fields, rule: Rule) -> list[Mixer | None]:
    """Return the mixer of each layer, from whichever field says its kind."""
    if fields.first("index_topk"):
        return [*latent_mixers(fields)]
    kinds = _kinds(fields, rule)
    found: dict[str, Mixer | None] = {_NONE: None}
    full: Mixer | None = None
    if set(kinds) & {"full", "sliding"}:
        full = _attention(fields, rule)
    if "full" in kinds:
        found["full"] = full
    if "sliding" in kinds:
        local = _local(fields, full)
        width = fields.count("sliding_window", "sliding_window_size", "attention_chunk_size")
        found["sliding"] = windowed(local, width)
    if "linear" in kinds:
        found["linear"] = linear_mixer(fields)
    if "conv" in kinds:
        width = fields.count("conv_dim", default=fields.count("hidden_size"))
        found["conv"] = ShortConv(size=width, conv=fields.count("conv_L_cache", default=3))
    mixers = [found[kind] for kind in kinds]
    return _of_blocks(fields, mixers)


def _kinds(fields: Fields, rule: Rule) -> list[str]:
    count = fields.count("num_hidden_layers")
    types = [str(kind) for kind in fields.items("layer_types", "layers_block_type")]
    if types:
        if len(types) < count:
            raise fields.error(f"layer_types names {len(types)} of {count} layers")
        return [_kind(fields, kind) for kind in types[:count]]
    if fields.first("attn_layer_period"):  # Jamba
        period, offset = fields.count("attn_layer_period"), fields.first("attn_layer_offset")
        return ["full" if n % period == (offset or 0) else "linear" for n in range(count)]
    if fields.first("attn_layer_indices"):  # Bamba
        listed = fields.items("attn_layer_indices")
        return ["full" if n in listed else "linear" for n in range(count)]
    if fields.first("full_attn_idxs"):  # LFM2
        listed = fields.items("full_attn_idxs")
        return ["full" if n in listed else "conv" for n in range(count)]
    if "num_attention_heads" not in fields or fields.first("mamba_d_state", "linear_attn_config"):
        return ["full" if "mamba_d_ssm" in fields else "linear"] * count
    return _windows(fields, rule, count)


def _windows(fields: Fields, rule: Rule, count: int) -> list[str]:
    """Return which layers have a window, without ``layer_types``: vLLM gives none to the others."""
    pattern = fields.first("hybrid_layer_pattern", "swa_layers")
    if isinstance(pattern, list):
        return ["sliding" if flag else "full" for flag in pattern[:count]]
    every = fields.first(
        "sliding_window_pattern", "global_attn_every_n_layers", "layer_group_size"
    ) or rule.get("full_every")
    if not fields.first("sliding_window", "attention_chunk_size") or not every:
        return ["full"] * count
    if isinstance(every, str):  # EXAONE 4 writes LLLG
        return ["full" if every[n % len(every)] == "G" else "sliding" for n in range(count)]
    return ["full" if (n + 1) % int(every) == 0 else "sliding" for n in range(count)]


def _kind(fields: Fields, kind: str) -> str:
    for name, known in (
        ("full", _FULL),
        ("sliding", _SLIDING),
        ("linear", _LINEAR),
        ("conv", _CONV),
    ):
        if kind in known:
            return name
    if kind == "hybrid" and fields.first("mamba_n_heads"):
        return "full"
    raise fields.error(
        f"layer_types has {kind!r}; known: {', '.join((*_FULL, *_SLIDING, *_LINEAR, *_CONV))}"
    )


def _attention(fields: Fields, rule: Rule) -> Mixer:
    if fields.first("kv_lora_rank"):
        return mla(fields, gated=bool(rule.get("attention_gate")))
    keys = ("attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias", "use_bias", "bias")
    given = fields.first(*keys)
    qkv_bias = bool(rule.get("qkv_bias", False) if given is None else given)
    only_qkv = rule.get("out_bias") is False or any(fields.first(key) for key in keys[1:4])
    out_bias = qkv_bias and not only_qkv
    for key in ("attention_out_bias", "out_bias", "o_bias"):
        out_bias = fields.flag(key, default=out_bias)
    norm = rule.get("qk_norm", "none")
    for key in ("use_qk_norm", "qk_layernorm", "use_qk_layernorm", "qk_norm"):
        if fields.first(key) is not None:
            norm = ("heads" if norm == "none" else norm) if fields.first(key) else "none"
    gate = fields.first("attention_gate", "use_attention_gate", "attn_output_gate")
    if fields.first("gating") and rule_of(str(fields.first("model_type"))) is not None:
        gate = None  # Laguna's gate is one number a head
    found = gqa(
        fields,
        qkv_bias=qkv_bias,
        out_bias=out_bias,
        qk_norm=norm != "none",
        qk_norm_all_heads=norm == "all heads",
        gated=bool(rule.get("attention_gate", False) if gate is None else gate),
    )
    width = fields.optional_count("v_head_dim")
    return replace(found, v_dim=width) if width not in (0, found.head_dim) else found


def _local(fields: Fields, full: Mixer | None) -> Gqa:
    """Return the attention of layers with a window, whose heads may be of their own number."""
    if not isinstance(full, Gqa):
        raise fields.error("a window over latent attention is not supported")
    other = fields.child("attention_other_setting")
    return replace(
        full,
        heads=fields.first("swa_num_attention_heads")
        or other.first("num_attention_heads")
        or full.heads,
        kv_heads=fields.first("swa_num_key_value_heads")
        or other.first("num_attention_groups")
        or full.kv_heads,
        head_dim=fields.first("swa_head_dim") or other.first("head_dim") or full.head_dim,
    )


def _of_blocks(fields: Fields, mixers: list[Mixer | None]) -> list[Mixer | None]:
    """Return mixers as pruned models (DeciLM, Nemotron-NAS) have them: ``block_configs`` has an
    entry a layer, with fewer KV heads or no attention."""
    blocks = fields.children("block_configs")
    kv_heads = fields.items("num_key_value_heads_per_layer")
    if kv_heads and not blocks:
        each = zip(mixers, kv_heads, strict=False)
        return [replace(m, kv_heads=n) if isinstance(m, Gqa) else m for m, n in each]
    if not blocks:
        return mixers
    found: list[Mixer | None] = []
    for block, mixer in zip(blocks, mixers, strict=True):
        attention = block.child("attention")
        if attention.flag("replace_with_linear", default=False):
            raise attention.error("replace_with_linear is not supported")
        if attention.flag("no_op", default=False) or not isinstance(mixer, Gqa):
            found.append(None)
            continue
        group = attention.count("n_heads_in_group", default=mixer.heads // mixer.kv_heads)
        one: Mixer = replace(mixer, kv_heads=mixer.heads // group)
        found.append(one)
    return found


def _ffns(fields: Fields, rule: Rule) -> list[Ffn | None]:
    count = fields.count("num_hidden_layers")
    blocks = fields.children("block_configs")
    if blocks:
        return [_block_ffn(fields, block.child("ffn")) for block in blocks]
    if not _has_experts(fields):
        return [_dense(fields, rule)] * count
    flags = moe_layers(fields)
    experts = _experts(fields, rule)
    plain: Ffn | None = None if all(flags) else _dense(fields, rule)
    return [experts if flag else plain for flag in flags]


def _block_ffn(fields: Fields, part: Fields) -> Ffn | None:
    if part.flag("no_op", default=False):
        return None
    if part.first("intermediate_size"):
        return Dense(width=part.count("intermediate_size"))
    # ffn_mult counts as Llama's multiple of the hidden size does: two thirds, up to 256.
    width = int(2 * float(part.first("ffn_mult")) * fields.count("hidden_size") / 3)
    return Dense(width=-(-width // 256) * 256)


def _dense(fields: Fields, rule: Rule) -> Ffn | None:
    if not fields.first("intermediate_size", "ffn_hidden_size") or "num_attention_heads" not in (
        fields
    ):
        return None if "num_attention_heads" not in fields else _four_times(fields, rule)
    width = fields.count("intermediate_size", "ffn_hidden_size")
    if rule.get("half_width"):
        width //= 2
    if fields.flag("block_auto_adjust_ff_dim", default=False):
        unit = fields.count("block_multiple_of", default=256)
        width = int(2 * width / 3 * float(fields.first("block_ffn_dim_multiplier") or 1.0))
        width = -(-width // unit) * unit
    return Dense(width=width, gated=_gated(fields, rule), bias=_mlp_bias(fields, rule))


def _four_times(fields: Fields, rule: Rule) -> Ffn:
    width = int(4 * fields.count("hidden_size"))
    return Dense(width=width, gated=_gated(fields, rule), bias=_mlp_bias(fields, rule))


def _gated(fields: Fields, rule: Rule) -> bool:
    """Return whether FFNs have a gate: those of models with LayerNorm and a GELU, and those with a
    ReLU, mostly do not."""
    activation = str(fields.first("hidden_act", "activation_function", "mlp_hidden_act"))
    has_layer_norm = fields.first("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    is_plain = activation in ("relu", "relu2", "xielu") or (
        has_layer_norm is not None and activation.startswith("gelu")
    )
    return bool(rule.get("gated", not is_plain))


def _mlp_bias(fields: Fields, rule: Rule) -> bool:
    given = fields.first("mlp_bias", "use_mlp_bias", "use_bias")
    return bool(rule.get("mlp_bias", False) if given is None else given)


def _has_experts(fields: Fields) -> bool:
    found = fields.first(*EXPERTS)
    return isinstance(found, int) and found > 1


_SHARED = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "share_expert_dim",
)


def _experts(fields: Fields, rule: Rule) -> Moe:
    width_key = str(rule.get("expert_width", "moe_intermediate_size"))
    if not fields.first(width_key):
        width_key = "intermediate_size"
    width = fields.count(width_key)
    own = rule.get("shared_width")
    shared = fields.optional_count(str(own)) if own else fields.optional_count(*_SHARED)
    if not shared and not own:
        number = fields.optional_count(
            "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"
        )
        shared = number * width
    return moe(
        fields,
        width=width_key,
        shared_width=shared,
        gated=_gated(fields, rule),
    )


def _beside(fields: Fields, mixers: list[Mixer | None]) -> list[Mixer]:
    """Return the mixers that run beside attention in each layer (Falcon-H1's Mamba-2)."""
    is_beside = "mamba_d_ssm" in fields and all(isinstance(mixer, Gqa) for mixer in mixers)
    return [linear_mixer(fields)] * len(mixers) if is_beside else []
