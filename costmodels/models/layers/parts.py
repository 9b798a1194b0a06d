"""What every kind of layer says about itself: parameters, state, attention work, operators.

A layer has a mixer (attention, or what stands in its place) and an FFN; either may be absent. A
kind is a frozen dataclass of its dimensions in a file of its own, with the methods of `Mixer` or
`Ffn`, listed by name in `costmodels.models.layers.kinds`. All figures are of one layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple, Protocol, Self

from costmodels.formats import ModelPrecision, Params
from costmodels.work import Array, Operator
from sim.shape import Clip


class Window(NamedTuple):
    """State of the newest ``tokens`` tokens alone."""

    tokens: int
    bytes_per_token: Fraction
    keeps_generated: bool = False
    """The window is over the prompt alone: what is generated is kept beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What one layer keeps of a sequence, in bytes on one rank."""

    growing: Fraction = Fraction(0)
    """A token, without end."""
    windows: tuple[Window, ...] = ()
    fixed: int = 0
    """A sequence, from its first token on: recurrent states, half-filled compressors."""
    entry_tokens: int = 1
    """Tokens that one entry of the growing part stands for: blocks hold a multiple of it."""

    @property
    def endless(self) -> Fraction:
        """Bytes that one more generated token adds, however many there are."""
        kept = (w.bytes_per_token for w in self.windows if w.keeps_generated)
        return self.growing + sum(kept, Fraction(0))

    @property
    def largest_fixed(self) -> Fraction:
        """Bytes of a sequence that do not grow, once every window is full."""
        return self.fixed + sum((w.tokens * w.bytes_per_token for w in self.windows), Fraction(0))

    def at(self, context: int, generated: int = 0) -> Fraction:
        """Bytes of a sequence of ``context`` tokens, ``generated`` of them after its prompt."""
        if context <= 0:
            return Fraction(0)
        found = self.growing * context + self.fixed
        for window in self.windows:
            apart = generated if window.keeps_generated else 0
            found += (min(context - apart, window.tokens) + apart) * window.bytes_per_token
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTerm:
    """Work in proportion to a clipped context (`sim.shape.Clip`); without a clip: to the context.

    For a decoding sequence, ``flops`` and ``bytes`` are a token of its clipped context. For a chunk
    of a prompt, ``flops`` are a clipped query-key pair, ``bytes`` a token of its clipped prefix or
    of its own.
    """

    cap_tokens: int | None = None
    """The length it is clipped to."""
    prompt_budgets: tuple[int, ...] = ()
    """In place of a length: budgets of the prompt, of equal shares of the layers. ``flops`` and
    ``bytes`` are then of one share's tokens."""
    flops: float = 0.0
    bytes: float = 0.0
    peak: str = "bf16_flop_per_s"
    """The field of `GpuSpec` it computes at."""
    name: str = "attention"

    @property
    def clip(self) -> Clip | None:
        """What its contexts are clipped to."""
        return self.prompt_budgets or self.cap_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortChunks:
    """What stands in place of `AttentionWork.prefill`, and ``prefix_flops``, for short contexts."""

    longest_tokens: int
    """Of the contexts of all queries in the step; the clip of one of the terms it replaces."""
    prefill: tuple[ContextTerm, ...]
    prefix_flops: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWork:
    """What one layer's mixer does besides the work of `Mixer.token_operators`."""

    decode: tuple[ContextTerm, ...] = ()
    prefill: tuple[ContextTerm, ...] = ()
    decode_seq_flops: float = 0.0
    """A decoding sequence, whatever its context; the next: its bytes (a state read and written)."""
    decode_seq_bytes: float = 0.0
    prefill_seq_bytes: float = 0.0
    """A chunk of a prompt: its state read and written once."""
    prefill_token_flops: float = 0.0
    """A new token of a prompt, whatever its context (chunked linear attention); the next: bytes."""
    prefill_token_bytes: float = 0.0
    prefix_flops: float = 0.0
    """A cached token before a chunk (latent caches are expanded again)."""
    short: ShortChunks | None = None
    """Another way for the chunks of a step, if none of their queries reaches far."""

    def clips(self) -> set[Clip]:
        """The clips of its terms."""
        terms = (*self.decode, *self.prefill, *(self.short.prefill if self.short else ()))
        return {term.clip for term in terms if term.clip is not None}


class Frame(NamedTuple):
    """What a kind needs to know of the model around it."""

    hidden: int
    precision: ModelPrecision
    ranks: int = 1


class Mixer(Protocol):
    """Attention, or what stands in its place. Frozen and hashable: equal layers are priced once."""

    @property
    def kind(self) -> str:
        """Its name in `costmodels.models.layers.kinds.MIXERS`."""

    @property
    def kv_heads(self) -> int:
        """Heads a decode kernel can work on apart."""

    def params(self, hidden: int) -> Params:
        """Parameters of a layer of so wide a model."""

    def state(self, precision: ModelPrecision) -> State:
        """What it keeps of a sequence."""

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Its work that depends on sequences and their contexts."""

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """Its operators that depend on the number of new tokens alone, for ``calls`` layers."""

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """Widths of inputs that a format with block scales converts in kernels of their own."""

    def row_elements(self, hidden: int) -> int:
        """Elements a token's activations take at the widest place."""

    def sharded(self, ranks: int) -> Self:
        """One rank's part. Raises `ScenarioError` with the reason where it does not divide."""


class Ffn(Protocol):
    """A feed-forward network."""

    @property
    def kind(self) -> str:
        """Its name in `costmodels.models.layers.kinds.FFNS`."""

    def params(self, hidden: int, *, active: bool = False) -> Params:
        """Parameters of a layer; ``active``: only those one token passes through."""

    def token_operators(self, frame: Frame, calls: int, tokens: Array) -> list[Operator]:
        """As of a mixer."""

    def block_inputs(self, hidden: int) -> tuple[int, ...]:
        """As of a mixer."""

    def row_elements(self, hidden: int) -> int:
        """As of a mixer."""

    def sharded(self, ranks: int) -> Self:
        """As of a mixer."""
