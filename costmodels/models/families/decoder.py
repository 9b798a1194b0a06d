"""The result of a family's reader, and the fields that many families share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from costmodels.fields import Fields
from costmodels.models.layers.bounded import SlidingWindow
from costmodels.models.layers.dense import Dense
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.spec import LayerGroup, Residual

FULL = ("full_attention", "attention")
SLIDING = ("sliding_attention", "chunked_attention")


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """The part of a `ModelSpec` that differs between families."""

    layers: tuple[LayerGroup, ...]
    norm: Literal["rms", "layer"] = "rms"
    tied: bool = False
    """Whether embeddings are tied if the config does not say."""
    position_rows: int = 0
    extra_params: int = 0
    residual: Residual | None = None
    mtp: tuple[LayerGroup, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences on what was assumed of the config."""


Reader = Callable[[Fields], Decoder]


def grouped(
    layers: Iterable[tuple[Mixer | None, Ffn | None]], *, norms: int = 2, all_reduces: int = 2
) -> tuple[LayerGroup, ...]:
    """Group equal layers, in order of first appearance."""
    counts: dict[tuple[Mixer | None, Ffn | None], int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(
        LayerGroup(count=count, mixer=mixer, ffn=ffn, norms=norms, all_reduces=all_reduces)
        for (mixer, ffn), count in counts.items()
    )


def mtp_layers(
    fields: Fields, last: tuple[Mixer | None, Ffn | None], *keys: str
) -> tuple[LayerGroup, ...]:
    """Return the modules of multi-token prediction, each a layer like the last one."""
    found = fields.first(*keys)
    if not isinstance(found, int) or found <= 0:
        return ()
    return (LayerGroup(count=found, mixer=last[0], ffn=last[1]),)


def gqa(fields: Fields, **traits: Any) -> Gqa:
    """Read grouped-query attention from the usual fields. Raises `ScenarioError` if heads do not
    divide."""
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
    head_dim = fields.count("head_dim", default=hidden // heads)
    return Gqa(heads=heads, kv_heads=kv_heads, head_dim=head_dim, **traits)


def layer_types(fields: Fields, known: tuple[str, ...]) -> list[str]:
    """Read the field ``layer_types``, one entry per layer; empty if absent."""
    types = [str(kind) for kind in fields.items("layer_types")]
    odd = sorted({kind for kind in types if kind not in known})
    if odd:
        raise fields.error(f"layer_types has {', '.join(odd)}; known: {', '.join(known)}")
    count = fields.count("num_hidden_layers")
    if types and len(types) < count:
        raise fields.error(f"layer_types names {len(types)} of {count} layers")
    return types[:count]


def windows(fields: Fields, is_sliding: Callable[[int], bool]) -> list[int | None]:
    """Return the window of each layer, None for full attention.

    ``is_sliding`` says which layers slide if ``layer_types`` does not.
    """
    count = fields.count("num_hidden_layers")
    types = layer_types(fields, (*FULL, *SLIDING))
    window = fields.first("sliding_window", "attention_chunk_size")
    if types:
        slides = [kind in SLIDING for kind in types]
    else:
        slides = [window is not None and is_sliding(layer) for layer in range(count)]
    if not any(slides):
        return [None] * count
    width = fields.count("sliding_window", "attention_chunk_size")
    return [width if slide else None for slide in slides]


def windowed(attention: Gqa, window: int | None) -> Mixer:
    """Return ``attention`` over a window if there is one, else unchanged."""
    return SlidingWindow(gqa=attention, window=window) if window else attention


def dense(fields: Fields, *keys: str, **traits: Any) -> Dense:
    """Read a dense FFN whose width is under one of ``keys`` (default: intermediate_size)."""
    return Dense(width=fields.count(*(keys or ("intermediate_size",))), **traits)


EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_routed_experts",
)
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "top_k_experts",
    "moe_topk",
    "moe_top_k",
    "moe_k",
)


def moe(fields: Fields, *, width: str = "moe_intermediate_size", **traits: Any) -> Moe:
    """Read a mixture of experts from the usual fields, in every spelling."""
    experts, top_k = fields.count(*EXPERTS), fields.count(*_TOP_K)
    if top_k > experts:
        raise fields.error(f"num_experts_per_tok {top_k} exceeds the number of experts {experts}")
    return Moe(num_experts=experts, top_k=top_k, width=fields.count(width), **traits)


def moe_layers(fields: Fields) -> list[bool]:
    """Return which layers have experts, from whichever field says it; all if none does."""
    count = fields.count("num_hidden_layers")
    types = fields.items("mlp_layer_types")
    if types:
        return [str(kind) != "dense" for kind in types[:count]]
    frequency = fields.first("moe_layer_freq")
    if isinstance(frequency, list | tuple):
        return [bool(flag) for flag in frequency[:count]]
    listed = fields.first("moe_layers_enum")
    if isinstance(listed, str) and listed:  # Step 3: numbers, joined by commas
        return [str(layer) in listed.split(",") for layer in range(count)]
    first = fields.optional_count(
        "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"
    )
    last = fields.optional_count("moe_layer_end_index", default=count - 1)
    step = fields.count("moe_layer_freq", default=1)
    sparse = fields.count("decoder_sparse_step", "moe_layer_interval", default=1)
    period, offset = (
        fields.count("expert_layer_period", default=1),
        fields.first("expert_layer_offset"),
    )
    plain = fields.items("mlp_only_layers")
    return [
        first <= layer <= last
        and layer % step == 0
        and (layer + 1) % sparse == 0
        and layer % period == (offset or 0) % period
        and layer not in plain
        for layer in range(count)
    ]
