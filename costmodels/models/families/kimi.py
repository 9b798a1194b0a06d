"""Kimi-Linear and Kimi-K3: delta attention (KDA) in most layers, latent attention in the others."""

from __future__ import annotations

from costmodels.fields import Fields
from costmodels.models.families.decoder import Decoder, dense, grouped, layer_types, moe_layers
from costmodels.models.families.latent import mla, shared_experts
from costmodels.models.layers.kda import Kda
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.spec import Residual


def read_kimi(fields: Fields) -> Decoder:
    """Read kimi_linear and kimi_k3. K3 gates its latent attention and routes in a latent space."""
    is_third = str(fields.first("model_type")).startswith("kimi_k3")
    latent = mla(fields, gated=fields.flag("mla_use_output_gate", default=is_third))
    linear = _linear(fields)
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


def _linear(fields: Fields) -> Kda:
    if fields.first("linear_attn_config") is None:
        return Kda(
            heads=fields.count("linear_num_heads"),
            head_dim=fields.count("linear_head_dim"),
            conv=fields.count("linear_conv_kernel_dim", default=4),
            full_rank_gate=fields.flag("use_full_rank_gate", default=False),
        )
    part = fields.part("linear_attn_config")
    return Kda(
        heads=part.count("num_heads"),
        head_dim=part.count("head_dim"),
        conv=part.count("short_conv_kernel_size", default=4),
        full_rank_gate=part.flag("use_full_rank_gate", default=False),
    )


def _full_layers(fields: Fields) -> set[int]:
    """Return the layers with latent attention, counted from 0; the config counts them from 1."""
    if fields.first("linear_attn_config") is not None:
        listed = fields.part("linear_attn_config").items("full_attn_layers")
        return {int(layer) - 1 for layer in listed}
    types = layer_types(fields, ("full_attention", "linear_attention"))
    return {layer for layer, kind in enumerate(types) if kind == "full_attention"}
