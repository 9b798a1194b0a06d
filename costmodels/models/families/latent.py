"""Multi-head latent attention: DeepSeek-V2 to V3.2, Kimi-K2, GLM-5, GLM-4.7-Flash."""

from __future__ import annotations

from costmodels.fields import Fields
from costmodels.models.families.decoder import Decoder, dense, grouped, moe, moe_layers, mtp_layers
from costmodels.models.layers.dsa import Dsa
from costmodels.models.layers.mla import Mla
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer


def mla(fields: Fields, *, gated: bool = False) -> Mla:
    """Read latent attention from the usual fields; ``q_lora_rank`` may be null."""
    return Mla(
        heads=fields.count("num_attention_heads"),
        kv_lora=fields.count("kv_lora_rank"),
        nope=fields.count("qk_nope_head_dim"),
        rope=fields.count("qk_rope_head_dim"),
        v_dim=fields.count("v_head_dim"),
        q_lora=fields.optional_count("q_lora_rank"),
        gated=gated,
    )


def shared_experts(fields: Fields, latent: int = 0) -> Moe:
    """Read routed experts, and the config's number of shared experts of equal width."""
    count = fields.optional_count("n_shared_experts", "num_shared_experts")
    shared = count * fields.count("moe_intermediate_size")
    return moe(fields, shared_width=shared, router_bias=True, latent=latent)


def read_deepseek(fields: Fields) -> Decoder:
    """Read deepseek_v2, deepseek_v3, kimi_k2, glm4_moe_lite, and with an indexer v32 and GLM-5."""
    flags = moe_layers(fields)
    plain: Ffn | None = None if all(flags) else dense(fields)
    experts = shared_experts(fields) if any(flags) else None
    layers = [
        (mixer, experts if has_experts else plain)
        for mixer, has_experts in zip(_mixers(fields), flags, strict=True)
    ]
    mtp = mtp_layers(fields, layers[-1], "num_nextn_predict_layers")
    return Decoder(layers=grouped(layers), mtp=mtp)


def _mixers(fields: Fields) -> list[Mixer]:
    """Return plain latent attention per layer, or sparse if the config has an indexer.

    ``indexer_types``, if present, says which layers have one: full, or shared (none).
    """
    attention, count = mla(fields), fields.count("num_hidden_layers")
    if not fields.first("index_topk"):
        return [attention] * count
    full = Dsa(
        mla=attention,
        topk=fields.count("index_topk"),
        index_heads=fields.count("index_n_heads"),
        index_dim=fields.count("index_head_dim"),
    )
    shared = Dsa(mla=attention, topk=full.topk, index_dim=full.index_dim)
    types = fields.items("indexer_types") or ["full"] * count
    return [shared if kind == "shared" else full for kind in types[:count]]
