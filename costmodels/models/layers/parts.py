"""What every kind of layer says about itself: parameters, state, attention work, operators.

A layer has a mixer (attention, or its replacement) and an FFN; either may be absent. A kind is a
frozen dataclass of its dimensions, with the methods of `Mixer` or `Ffn`, listed by name in
`costmodels.models.layers.kinds`. All figures are per layer.

Linear-attention kinds share a state of fixed size, read and written once per step. Their prompts
are computed in chunks of 64 tokens (the flash-linear-attention kernels' size), so their FLOPs are
linear in the new tokens, whatever the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol, Self

from costmodels.formats import ModelPrecision, Params, load_format
from costmodels.work import Array, Operator
from sim.errors import ScenarioError
from sim.shape import Clip


class Window(NamedTuple):
    """State of only the newest ``tokens`` tokens."""

    tokens: int
    bytes_per_token: Fraction
    keeps_generated: bool = False
    """Whether the window covers only the prompt, with all generated tokens kept beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state that one layer keeps of a sequence, in bytes on one rank."""

    growing: Fraction = Fraction(0)
    """Bytes per token, without end."""
    windows: tuple[Window, ...] = ()
    fixed: int = 0
    """Bytes per sequence, from its first token on: recurrent states, half-filled compressors."""
    entry_tokens: int = 1
    """Tokens that one entry of the growing part stands for; blocks hold a multiple of it."""

    @property
    def endless(self) -> Fraction:
        """Bytes that each further generated token adds, without end."""
        kept = (w.bytes_per_token for w in self.windows if w.keeps_generated)
        return self.growing + sum(kept, Fraction(0))

    @property
    def largest_fixed(self) -> Fraction:
        """Bytes of a sequence that do not grow, once every window is full."""
        return self.fixed + sum((w.tokens * w.bytes_per_token for w in self.windows), Fraction(0))

    def at(self, context: int, generated: int = 0) -> Fraction:
        """Return the bytes of a sequence of ``context`` tokens, ``generated`` of them after its
        prompt."""
        if context <= 0:
            return Fraction(0)
        found = self.growing * context + self.fixed
        for window in self.windows:
            apart = generated if window.keeps_generated else 0
            found += (min(context - apart, window.tokens) + apart) * window.bytes_per_token
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTerm:
    """Work in proportion to a context, clipped as in `sim.shape.Clip` if there is a clip.

    For a decoding sequence, ``flops`` and ``bytes`` are per token of its clipped context. For a
    chunk of a prompt, ``flops`` are per clipped query-key pair, ``bytes`` per token of its clipped
    prefix or of the chunk itself.
    """

    cap_tokens: int | None = None
    """The length that it is clipped to."""
    prompt_budgets: tuple[int, ...] = ()
    """Budgets of the prompt, used instead of a length, each for an equal share of the layers.
    ``flops`` and ``bytes`` are then per token of one share."""
    flops: float = 0.0
    bytes: float = 0.0
    peak: str = "bf16_flop_per_s"
    """The field of `GpuSpec` it computes at."""
    name: str = "attention"

    @property
    def clip(self) -> Clip | None:
        """The length or budgets that its contexts are clipped to; None: no clip."""
        return self.prompt_budgets or self.cap_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortChunks:
    """Replacement for `AttentionWork.prefill` and ``prefix_flops`` for short contexts."""

    longest_tokens: int
    """Longest context of any query in the step; the clip of one of the terms it replaces."""
    prefill: tuple[ContextTerm, ...]
    prefix_flops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """The work of one layer's mixer besides that of `Mixer.token_operators`."""

    decode: tuple[ContextTerm, ...] = ()
    prefill: tuple[ContextTerm, ...] = ()
    decode_seq_flops: float = 0.0
    """FLOPs per decoding sequence, whatever its context; ``decode_seq_bytes``: bytes (a state
    read and written)."""
    decode_seq_bytes: float = 0.0
    prefill_seq_bytes: float = 0.0
    """Bytes per chunk of a prompt: its state read and written once."""
    prefill_token_flops: float = 0.0
    """FLOPs per new token of a prompt, whatever its context (chunked linear attention);
    ``prefill_token_bytes``: bytes."""
    prefill_token_bytes: float = 0.0
    prefix_flops: float = 0.0
    """FLOPs per cached token before a chunk (latent caches are expanded again)."""
    short: ShortChunks | None = None
    """Replacement for the chunks of a step if none of their queries reaches far."""

    def clips(self) -> set[Clip]:
        """Return the clips of all terms."""
        terms = (*self.decode, *self.prefill, *(self.short.prefill if self.short else ()))
        return {term.clip for term in terms if term.clip is not None}


class Frame(NamedTuple):
    """The parts of the surrounding model that a kind of layer depends on."""

    hidden: int
    precision: ModelPrecision
    ranks: int = 1


class Mixer(Protocol):
    """Attention, or its replacement. Frozen and hashable: equal layers are priced once."""

    @property
    def kind(self) -> str:
        """Name of the kind in `costmodels.models.layers.kinds.MIXERS`."""

    @property
    def kv_heads(self) -> int:
        """Number of heads that a decode kernel can work on separately."""

    def params(self, hidden: int) -> Params:
        """Count the parameters of a layer of a model with hidden size ``hidden``."""

    def state(self, precision: ModelPrecision) -> State:
        """Return the state that the layer keeps of a sequence."""

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return the work that depends on sequences and their contexts."""

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the operators that depend only on the number of new tokens, for ``calls``
        layers."""

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the widths of inputs that a format with block scales converts in separate
        kernels."""

    def row_elements(self, hidden: int) -> int:
        """Count the elements of a token's activations at the widest place."""

    def sharded(self, ranks: int) -> Self:
        """Return one rank's part. Raises `ScenarioError` with the reason if it does not divide."""


class Ffn(Protocol):
    """A feed-forward network of a layer."""

    @property
    def kind(self) -> str:
        """Name of the kind in `costmodels.models.layers.kinds.FFNS`."""

    def params(self, hidden: int, *, active: bool = False) -> Params:
        """Count the parameters of a layer; ``active``: only those that one token passes through."""

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Return the operators, as `Mixer.token_operators` does."""

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Return the widths of inputs, as `Mixer.block_inputs` does."""

    def row_elements(self, hidden: int) -> int:
        """Count the elements, as `Mixer.row_elements` does."""

    def sharded(self, ranks: int) -> Self:
        """Return one rank's part, as `Mixer.sharded` does."""


def heads_per_kv(mixer: Mixer) -> float:
    """Return the query heads that share a head of keys and values."""
    return float(getattr(mixer, "heads", mixer.kv_heads) / mixer.kv_heads)


def split(count: int, ranks: int, what: str) -> int:
    """Return one rank's part of ``count``. Raises `ScenarioError` if it does not divide."""
    if count % ranks:
        raise ScenarioError(f"its {what} are not a multiple of {ranks}")
    return count // ranks


def split_width(width: int, ranks: int, what: str) -> int:
    """Return one rank's part of a matrix's width. Raises `ScenarioError` if it does not divide."""
    if width % ranks:
        raise ScenarioError(f"its {what} {width} is not a multiple of {ranks}")
    return width // ranks


def split_kv_heads(kv_heads: int, ranks: int) -> int:
    """Return the KV heads on one rank: more ranks than heads replicate each head, as in vLLM."""
    if kv_heads % ranks and ranks % kv_heads:
        raise ScenarioError(
            f"its {kv_heads} KV heads neither divide into nor replicate over {ranks} ranks"
        )
    return max(1, kv_heads // ranks)


CHUNK = 64
"""Tokens of a prompt that chunked linear attention computes as one."""


def recurrent_state(elements: int, conv_elements: int, precision: ModelPrecision) -> State:
    """Return the recurrent state, and the newest inputs of the short convolutions."""
    state = load_format(precision.state).num_bytes(elements)
    return State(fixed=state + load_format(precision.conv).num_bytes(conv_elements))


def recurrent_work(
    state: State, heads: int, d_k: int, d_v: int, *, delta_rule: bool, chunk_bytes: float = 0.0
) -> AttentionWork:
    """Return the work of reading and writing ``state`` once per sequence and step.

    ``chunk_bytes`` are what the kernels of a chunk hand on to each other, per token of a prompt.
    A decode decays the state, adds an outer product and multiplies by a query: 5 d_k d_v FLOPs per
    head; the delta rule first reads what the state holds for the key: 2 more. A chunk's token meets
    the state twice (three times with the delta rule) and half the other tokens of its chunk.
    """
    square = d_k * d_v
    products = 3 if delta_rule else 2
    # Scores and their product with values; the delta rule also solves for its corrections.
    within = 3 * d_k + 2 * d_v if delta_rule else d_k + d_v
    return AttentionWork(
        decode_seq_flops=float(heads * (5 + 2 * delta_rule) * square),
        decode_seq_bytes=2.0 * state.fixed,
        prefill_seq_bytes=2.0 * state.fixed,
        prefill_token_flops=float(heads * (2 * products * square + CHUNK * within)),
        prefill_token_bytes=chunk_bytes,
    )
