"""Full attention beside linear layers: Qwen3-Next, Qwen3.5, MiniMax-M1, Nemotron-H, Kimi-Linear and
Kimi-K3 (delta attention in most layers, latent attention in the others)."""

from __future__ import annotations

from costmodels.fields import Fields
from costmodels.models.families.decoder import (
    Decoder,
    dense,
    gqa,
    grouped,
    layer_types,
    moe,
    moe_layers,
    mtp_layers,
)
from costmodels.models.families.latent import mla, shared_experts
from costmodels.models.families.linear import gdn, kda, mamba2
from costmodels.models.layers.dense import Dense
from costmodels.models.layers.lightning import Lightning
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.spec import Residual

_LINEAR = ("linear_attention", "full_attention")
_BLOCKS = {
    "mamba": "M",
    "linear_attention": "M",
    "attention": "*",
    "full_attention": "*",
    "moe": "E",
    "mlp": "-",
}


def read_qwen_next(fields: Fields) -> Decoder:
    """Read qwen3_next, qwen3_5 (dense or with experts): 3 Gated DeltaNet layers, then a gated
    full one."""
    count = fields.count("num_hidden_layers")
    linear = gdn(fields)
    full = gqa(fields, qk_norm=True, gated=fields.flag("attn_output_gate", default=True))
    every = fields.count("full_attention_interval", default=4)
    types = layer_types(fields, _LINEAR) or [
        _LINEAR[(layer + 1) % every == 0] for layer in range(count)
    ]
    has_experts = fields.first("num_experts", "num_local_experts") is not None
    flags = moe_layers(fields) if has_experts else [False] * count
    shared = fields.optional_count("shared_expert_intermediate_size")
    experts = moe(fields, shared_width=shared, shared_gate=shared > 0) if has_experts else None
    plain = None if all(flags) else dense(fields)
    layers: list[tuple[Mixer, Ffn | None]] = [
        (full if kind == "full_attention" else linear, experts if flag else plain)
        for kind, flag in zip(types, flags, strict=True)
    ]
    return Decoder(
        layers=grouped(layers),
        mtp=mtp_layers(fields, (full, layers[-1][1]), "mtp_num_hidden_layers"),
    )


def read_minimax(fields: Fields) -> Decoder:
    """Read MiniMax-M1: 7 lightning layers, then a full one; all with experts."""
    full, count = gqa(fields), fields.count("num_hidden_layers")
    linear = Lightning(heads=full.heads, head_dim=full.head_dim)
    ffn = moe(fields, width="intermediate_size")
    types = layer_types(fields, _LINEAR)
    kinds = [kind == "full_attention" for kind in types] or [
        kind == 1 for kind in fields.items("attn_type_list")
    ]
    if len(kinds) < count:
        raise fields.error("layer_types or attn_type_list is missing: one entry a layer")
    layers = ((full if is_full else linear, ffn) for is_full in kinds[:count])
    return Decoder(layers=grouped(layers))


def read_nemotron_h(fields: Fields) -> Decoder:
    """Read Nemotron-H: every layer has a single part: M Mamba-2, * attention, E experts, - FFN."""
    pattern = str(fields.first("hybrid_override_pattern") or "")
    if not pattern:
        types = [str(kind) for kind in fields.items("layers_block_type")]
        pattern = "".join(_BLOCKS.get(kind, "?") for kind in types)
    if not pattern or set(pattern) - set(_BLOCKS.values()):
        raise fields.error(
            f"hybrid_override_pattern must be made of M, *, E and -, not {pattern!r}, or "
            f"layers_block_type of {', '.join(_BLOCKS)}"
        )
    parts: dict[str, tuple[Mixer | None, Ffn | None]] = {}
    for part in dict.fromkeys(pattern):
        if part == "M":
            parts[part] = (mamba2(fields), None)
        elif part == "*":
            parts[part] = (gqa(fields), None)
        elif part == "-":
            parts[part] = (None, Dense(width=fields.count("intermediate_size"), gated=False))
        else:
            parts[part] = (None, _experts(fields))
    return Decoder(layers=grouped((parts[part] for part in pattern), norms=1, all_reduces=1))


def _experts(fields: Fields) -> Moe:
    return moe(
        fields,
        shared_width=fields.optional_count("moe_shared_expert_intermediate_size"),
        latent=fields.optional_count("moe_latent_size"),
        router_bias=True,
        gated=False,
    )


def read_kimi(fields: Fields) -> Decoder:
    """Read kimi_linear and kimi_k3. K3 gates its latent attention and routes in a latent space."""
    is_third = str(fields.first("model_type")).startswith("kimi_k3")
    latent = mla(fields, gated=fields.flag("mla_use_output_gate", default=is_third))
    linear = kda(fields)
    flags = moe_layers(fields)
    plain: Ffn | None = None if all(flags) else dense(fields)
    experts = shared_experts(fields, latent=fields.optional_count("routed_expert_hidden_size"))
    count, full = fields.count("num_hidden_layers"), _full_layers(fields)
    layers: list[tuple[Mixer, Ffn | None]] = [
        (latent if layer in full else linear, experts if flags[layer] else plain)
        for layer in range(count)
    ]
    # Attention residuals add a query and a norm over earlier outputs before every mixer and FFN.
    block = fields.optional_count("attn_res_block_size")
    return Decoder(
        layers=grouped(layers),
        extra_params=4 * fields.count("hidden_size") * count if block else 0,
        residual=_attention_residuals(count, block) if block else None,
    )


def _attention_residuals(layers: int, block: int) -> Residual:
    """Return the traffic of attention over the outputs of earlier blocks (arXiv 2603.15031), in two
    phases.

    Queries are learned, so the outputs of completed blocks are read once for all mixers and FFNs of
    a block, which writes a part for each; each reads its part and merges it with the block's own
    sum. The mean number of completed blocks counts, the embedding among them; one kernel each.
    """
    blocks = -(-layers // block)
    completed = (blocks + 1) / 2
    return Residual(
        "attention_residuals", moved=2 + completed / (2 * block), kept=blocks, launches=1
    )


def _full_layers(fields: Fields) -> set[int]:
    """Return the layers with latent attention, counted from 0; the config counts them from 1."""
    if fields.first("linear_attn_config") is not None:
        listed = fields.part("linear_attn_config").items("full_attn_layers")
        return {int(layer) - 1 for layer in listed}
    types = layer_types(fields, ("full_attention", "linear_attention"))
    return {layer for layer, kind in enumerate(types) if kind == "full_attention"}
