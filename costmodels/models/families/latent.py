"""Latent attention: DeepSeek-V2 to V3.2, Kimi-K2, GLM-5, GLM-4.7-Flash; and DeepSeek-V4, with a
window in every layer and compressed entries by the layer's stride."""

from __future__ import annotations

from dataclasses import replace

from costmodels.fields import Fields
from costmodels.models.families.decoder import (
    Decoder,
    dense,
    grouped,
    layer_types,
    moe,
    moe_layers,
    mtp_layers,
)
from costmodels.models.layers.compressed import CompressedMqa
from costmodels.models.layers.dsa import Dsa
from costmodels.models.layers.mla import Mla
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.spec import Residual


def mla(fields: Fields, *, gated: bool = False) -> Mla:
    """Read latent attention from the usual fields; ``q_lora_rank`` may be null."""
    return Mla(
        heads=fields.count("num_attention_heads"),
        kv_lora=fields.count("kv_lora_rank"),
        nope=fields.count("qk_nope_head_dim"),
        rope=fields.optional_count("qk_rope_head_dim"),
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
        for mixer, has_experts in zip(latent_mixers(fields), flags, strict=True)
    ]
    mtp = mtp_layers(fields, layers[-1], "num_nextn_predict_layers")
    return Decoder(layers=grouped(layers), mtp=mtp)


def latent_mixers(fields: Fields) -> list[Mixer]:
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


_STRIDE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}


def read_deepseek_v4(fields: Fields) -> Decoder:
    """Read DeepSeek-V4: all layers have experts; the first few choose them by a hash without
    weights.

    Layers with the small stride have an indexer; their entries are sums over two strides.
    """
    head_dim = fields.count("head_dim")
    base = CompressedMqa(
        heads=fields.count("num_attention_heads"),
        head_dim=head_dim,
        rope=fields.count("qk_rope_head_dim", default=head_dim // 8),
        q_lora=fields.count("q_lora_rank"),
        o_lora=fields.count("o_lora_rank"),
        o_groups=fields.count("o_groups"),
        window=fields.count("sliding_window"),
    )
    sparse = replace(
        base,
        overlap=True,
        index_heads=fields.count("index_n_heads"),
        index_dim=fields.count("index_head_dim"),
        topk=fields.count("index_topk"),
    )
    strides = _strides(fields)
    smallest = min((stride for stride in strides if stride), default=0)
    has_index = 0 < smallest < max(strides)
    mixers = [
        replace(sparse if has_index and stride == smallest else base, stride=stride)
        for stride in strides
    ]
    layers = [(mixer, shared_experts(fields)) for mixer in mixers]
    return Decoder(
        layers=grouped(layers),
        extra_params=connection_params(fields, len(layers)),
        residual=connections(fields.optional_count("hc_mult")),
        mtp=mtp_layers(fields, layers[-1], "num_nextn_predict_layers"),
    )


def read_deepseek_ref(fields: Fields) -> Decoder:
    """Read DeepSeek's own minimal files of any version."""
    is_v4 = fields.first("compress_ratios") is not None
    return read_deepseek_v4(fields) if is_v4 else read_deepseek(fields)


def _strides(fields: Fields) -> list[int]:
    """Return the layers' strides from ``compress_ratios``, or ``layer_types`` with
    ``compress_rates``."""
    count = fields.count("num_hidden_layers")
    ratios = fields.items("compress_ratios")
    if ratios:
        if len(ratios) < count or not all(isinstance(ratio, int) for ratio in ratios):
            raise fields.error(f"compress_ratios must hold {count} integers, not {ratios!r}")
        return ratios[:count]
    types = layer_types(fields, tuple(_STRIDE))
    if not types:
        raise fields.error("compress_ratios or layer_types is missing: one entry a layer")
    rates = dict(fields.first("compress_rates") or {})
    return [int(rates.get(kind, _STRIDE[kind])) for kind in types]


def connection_params(fields: Fields, layers: int) -> int:
    """Count the hyper-connections: two mixes of hc_mult residual streams per layer, one at the
    end."""
    streams = fields.optional_count("hc_mult")
    width = streams * fields.count("hidden_size")
    mixes = (2 + streams) * streams
    return layers * 2 * (mixes * (width + 1) + 3) + streams * (width + 1) + 1 if streams else 0


def connections(streams: int) -> Residual | None:
    """Return the traffic of the hyper-connections, in fused kernels (mHC, arXiv 2512.24880, section
    4.3).

    With n streams, the maps read n vectors, the mix before a mixer or FFN reads n and writes one,
    the merge after it reads n and its output, and writes n: 4 n + 2, less the plain residual's two.
    There are two kernels, before and after; the maps' small matrices are not counted.
    """
    if streams < 2:
        return None
    return Residual("hyper_connections", moved=4.0 * streams, kept=streams - 1, launches=2)
