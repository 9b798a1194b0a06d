"""The columns that key an operator table of each kind, and the bytes and peaks of its number
formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TableKind = Literal[
    "gemm",
    "grouped_gemm",
    "prefill_attention",
    "decode_attention",
    "mla_decode",
    "kda_chunk",
    "kda_recurrent",
    "gdn_chunk",
    "gdn_recurrent",
    "elementwise",
    "embedding",
    "sampling",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
    "copy",
    "launch",
]
COLLECTIVES: tuple[TableKind, ...] = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "send_recv",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindColumns:
    """The shape columns of one kind.

    A curve is the set of points that share all of ``same`` and ``near``; along it, time is a
    function of ``axes``. An unmeasured curve is read off its neighbors: those with equal ``same``,
    the closest in log ``near``.
    """

    same: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    axes: tuple[str, ...]
    """Axes, outermost first: the order in which the nested interpolation takes them."""

    @property
    def shape(self) -> tuple[str, ...]:
        """All shape columns, in order."""
        return (*self.same, *self.near, *self.axes)


_DELTA_RULE = KindColumns(
    same=("head_k_dim", "head_v_dim"), near=("heads",), axes=("tokens", "seqs")
)
KINDS: dict[TableKind, KindColumns] = {
    # [m, k] x [k, n].
    "gemm": KindColumns(near=("n", "k"), axes=("m",)),
    # All kernels of one layer's experts, on one rank: inter is the whole model's.
    "grouped_gemm": KindColumns(
        near=("hidden", "inter", "top_k", "num_experts", "tp", "ep"), axes=("tokens",)
    ),
    # seqs equal prompts; window 0: full attention.
    "prefill_attention": KindColumns(
        same=("head_dim", "window"),
        near=("q_heads", "kv_heads"),
        axes=("new_tokens", "prefix_tokens", "seqs"),
    ),
    # seqs equal contexts; context_tokens counts the sequence's new token.
    "decode_attention": KindColumns(
        same=("head_dim", "window"),
        near=("q_heads", "kv_heads"),
        axes=("seqs", "context_tokens"),
    ),
    # Absorbed latent attention: seqs equal contexts, heads of one rank.
    "mla_decode": KindColumns(
        same=("kv_lora_rank", "rope_dim"), near=("heads",), axes=("seqs", "context_tokens")
    ),
    # Linear attention with the delta rule: seqs chunks of ``tokens`` tokens each; recurrent: one
    # token each unless drafts are verified.
    "kda_chunk": _DELTA_RULE,
    "kda_recurrent": _DELTA_RULE,
    "gdn_chunk": _DELTA_RULE,
    "gdn_recurrent": _DELTA_RULE,
    # The kernel is in `TableMeta.variant`. bytes_per_row: read and written.
    "elementwise": KindColumns(near=("bytes_per_row",), axes=("rows",)),
    "embedding": KindColumns(near=("width", "vocab"), axes=("rows",)),
    "sampling": KindColumns(near=("vocab",), axes=("rows",)),
    # bytes: one rank's input.
    **dict.fromkeys(COLLECTIVES, KindColumns(same=("ranks",), axes=("bytes",))),
    "copy": KindColumns(axes=("bytes",)),
    "launch": KindColumns(axes=("kernels",)),
}
VARIANTS: dict[TableKind, str] = {
    "grouped_gemm": "routing",
    "elementwise": "op",
    "sampling": "op",
    "copy": "direction",
    "launch": "mode",
}
"""What else distinguishes tables of some kinds: a shape field of a measurement, and the table's
`TableMeta.variant`."""

# Bytes of a number as stored, block scales included.
FORMAT_BYTES = {
    "bfloat16": 2.0,
    "float16": 2.0,
    "float32": 4.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "mxfp8": 33 / 32,
    "int8": 1.0,
    "int4": 0.5,
    "nvfp4": 9 / 16,
    "mxfp4": 17 / 32,
}

# The compute peak (a field of `GpuSpec`) at which multiplications in a format run.
PEAKS = {
    "bfloat16": "bf16_flop_per_s",
    "float16": "bf16_flop_per_s",
    "float32": "bf16_flop_per_s",
    "fp8": "fp8_flop_per_s",
    "mxfp8": "fp8_flop_per_s",
    "int8": "int8_op_per_s",
    "nvfp4": "fp4_flop_per_s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats, keys of `FORMAT_BYTES`; results are 16-bit."""

    activations: str = "bfloat16"
    """Format of activations and of the multiplication: weights are converted to it."""
    weights: str = "bfloat16"
    kv: str = "bfloat16"
    """Format of keys and values, or of the recurrent state in their place."""
