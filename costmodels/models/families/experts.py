"""Mixtures of experts with grouped-query attention.

MiniMax-M3 has block-sparse attention in some layers; it is read from the field names alone, and its
indexer is taken to store one key per token.
"""

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
    windowed,
    windows,
)
from costmodels.models.families.plain import text_windows
from costmodels.models.layers.block_sparse import BlockSparse
from costmodels.models.layers.dense import Dense
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer


def read_mixtral(fields: Fields) -> Decoder:
    """Read Mixtral: all layers have experts as wide as the config's FFN."""
    attention, ffn = gqa(fields), moe(fields, width="intermediate_size")
    return Decoder(layers=grouped((windowed(attention, w), ffn) for w in text_windows(fields)))


def read_qwen_moe(fields: Fields) -> Decoder:
    """Read qwen2_moe (biased, with a gated shared expert) and qwen3_moe (QK-norms)."""
    is_second = fields.first("model_type") == "qwen2_moe"
    attention = gqa(
        fields,
        qkv_bias=fields.flag("attention_bias", default=is_second),
        out_bias=fields.flag("attention_bias", default=False) and not is_second,
        qk_norm=not is_second,
    )
    shared = fields.optional_count("shared_expert_intermediate_size")
    experts = moe(fields, shared_width=shared, shared_gate=shared > 0)
    flags = moe_layers(fields)
    plain = None if all(flags) else dense(fields)
    layers = (
        (windowed(attention, window), experts if has_experts else plain)
        for window, has_experts in zip(text_windows(fields), flags, strict=True)
    )
    return Decoder(layers=grouped(layers))


def read_gpt_oss(fields: Fields) -> Decoder:
    """Read GPT-OSS: sliding and full layers in turn, sinks and biases everywhere."""
    attention = gqa(fields, qkv_bias=True, out_bias=True, sinks=True)
    ffn = moe(fields, width="intermediate_size", expert_bias=True, router_bias=True)
    found = windows(fields, lambda layer: layer % 2 == 0)
    return Decoder(layers=grouped((windowed(attention, window), ffn) for window in found))


def read_glm4_moe(fields: Fields) -> Decoder:
    """Read GLM-4.5 to 4.7: biased q, k and v, shared expert, the first layers dense."""
    attention = gqa(
        fields,
        qkv_bias=fields.flag("attention_bias", default=True),
        qk_norm=fields.flag("use_qk_norm", default=False),
    )
    return _with_shared_experts(fields, attention)


def _with_shared_experts(fields: Fields, attention: Gqa) -> Decoder:
    width = fields.count("moe_intermediate_size")
    shared = fields.optional_count("n_shared_experts") * width
    experts = moe(fields, shared_width=shared, router_bias=True)
    flags = moe_layers(fields)
    plain = None if all(flags) else dense(fields)
    layers: list[tuple[Gqa, Ffn | None]] = [
        (attention, experts if has_experts else plain) for has_experts in flags
    ]
    mtp = mtp_layers(fields, layers[-1], "num_nextn_predict_layers")
    return Decoder(layers=grouped(layers), mtp=mtp)


def read_minimax_m2(fields: Fields) -> Decoder:
    """Read MiniMax-M2: full attention, norms over all query and all key heads, no shared expert."""
    norm = fields.first("qk_norm_type")
    if not fields.flag("use_qk_norm", default=True) or norm not in (None, "per_layer"):
        raise fields.error(
            f"use_qk_norm must be true and qk_norm_type per_layer, not {norm!r}: another norm of "
            "queries and keys is not priced"
        )
    if any(kind != 1 for kind in fields.items("attn_type_list")):
        raise fields.error("attn_type_list must be a list of 1: MiniMax-M2 has full attention only")
    layer_types(fields, ("full_attention",))
    attention = gqa(fields, qk_norm=True, qk_norm_all_heads=True)
    shared = fields.optional_count("shared_intermediate_size")
    ffn = moe(fields, width="intermediate_size", shared_width=shared)
    layers = [(attention, ffn)] * fields.count("num_hidden_layers")
    return Decoder(layers=grouped(layers), mtp=mtp_layers(fields, layers[-1], "num_mtp_modules"))


def read_llama4(fields: Fields) -> Decoder:
    """Read Llama 4: every fourth layer reads all, the others their chunk; experts every other
    layer.

    A chunk of attention_chunk_size tokens is taken as a window of that size: the most that it
    reads.
    """
    attention, count = gqa(fields), fields.count("num_hidden_layers")
    width = fields.count("intermediate_size")
    plain = Dense(width=fields.count("intermediate_size_mlp", default=width))
    step = fields.count("interleave_moe_layer_step", default=1)
    experts = Moe(
        num_experts=fields.count("num_local_experts"),
        top_k=fields.count("num_experts_per_tok", default=1),
        width=width,
        shared_width=width,
    )
    listed = fields.items("moe_layers") or [n for n in range(count) if (n + 1) % step == 0]
    found = windows(fields, lambda layer: (layer + 1) % 4 != 0)
    layers = (
        (windowed(attention, window), experts if layer in listed else plain)
        for layer, window in enumerate(found)
    )
    return Decoder(layers=grouped(layers))


def read_minimax_m3(fields: Fields) -> Decoder:
    """Read MiniMax-M3. ``sparse_attention_freq`` is a flag per layer, or an interval of layers;
    absent: all sparse."""
    count = fields.count("num_hidden_layers")
    full = gqa(fields, qk_norm=fields.flag("use_qk_norm", default=True))
    flags = moe_layers(fields)
    experts = moe(
        fields,
        width="moe_intermediate_size"
        if fields.first("moe_intermediate_size")
        else "intermediate_size",
        shared_width=fields.optional_count("shared_intermediate_size"),
        router_bias=True,
    )
    plain: Ffn | None = None
    if not all(flags):
        plain = dense(fields, "dense_intermediate_size", "intermediate_size")
    mixers: list[Mixer] = [full] * count
    if fields.first("sparse_attention_config") is not None:
        mixers = _sparse(fields.part("sparse_attention_config"), full, count)
    layers = [
        (mixer, experts if flag else plain) for mixer, flag in zip(mixers, flags, strict=True)
    ]
    return Decoder(
        layers=grouped(layers),
        mtp=mtp_layers(fields, layers[-1], "num_nextn_predict_layers", "num_mtp_modules"),
    )


def _sparse(part: Fields, full: Gqa, count: int) -> list[Mixer]:
    sparse = BlockSparse(
        gqa=full,
        block_tokens=part.count("sparse_block_size"),
        topk_blocks=part.count("sparse_topk_blocks"),
        index_heads=part.count("sparse_num_index_heads"),
        index_dim=part.count("sparse_index_dim"),
    )
    frequency = part.first("sparse_attention_freq")
    if isinstance(frequency, list | tuple):
        flags = [bool(flag) for flag in frequency[:count]]
    else:
        step = part.count("sparse_attention_freq", default=1)
        flags = [(layer + 1) % step == 0 for layer in range(count)]
    if len(flags) < count:
        raise part.error(f"sparse_attention_freq names {len(flags)} of {count} layers")
    return [sparse if flag else full for flag in flags]
