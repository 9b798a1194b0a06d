"""MiniMax-M3: block-sparse attention in some layers, the first ones dense, one shared expert.

Read from the field names alone: the indexer is taken to store one key per token.
"""

from __future__ import annotations

from costmodels.fields import Fields
from costmodels.models.families.decoder import (
    Decoder,
    dense,
    gqa,
    grouped,
    moe,
    moe_layers,
    mtp_layers,
)
from costmodels.models.layers.block_sparse import BlockSparse
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.parts import Ffn, Mixer


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
