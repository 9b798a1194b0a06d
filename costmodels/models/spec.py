"""A model as a list of layers, each a mixer and an FFN of some kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Literal, NamedTuple, TypeVar

from costmodels.formats import DTYPE_BYTES, ModelPrecision, Params
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer, State
from costmodels.models.towers import Tower
from sim.shape import Clip, ordered

__all__ = ["DTYPE_BYTES", "LayerGroup", "ModelSpec", "quantized"]

Part = TypeVar("Part")
PLAIN = ModelPrecision()


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """``count`` equal layers. They need not be neighbors: costs do not depend on their order."""

    count: int
    mixer: Mixer | None = None
    ffn: Ffn | None = None
    norms: int = 2
    """Norms over the hidden size per layer."""
    all_reduces: int = 2
    """Sums over tensor-parallel ranks per layer: after the mixer, and after the FFN."""
    skips_prompt: bool = False
    """Whether only sampling tokens pass it: the upper half of YOCO, where prompts leave early."""


class Residual(NamedTuple):
    """Residual connections of mixers and FFNs that take more than one sum.

    All numbers are beyond a plain residual's, in vectors of the hidden size per token.
    """

    name: str
    moved: float
    """Vectors read and written for each mixer and each FFN."""
    kept: int
    """Vectors that live through the layers."""
    launches: int
    """Kernels for each mixer and each FFN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """One checkpoint's architecture; nothing here depends on the hardware.

    It is built and checked by `read_hf_config` and `load_model`.
    """

    name: str
    model_type: str
    layers: tuple[LayerGroup, ...]
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    norm: Literal["rms", "layer"] = "rms"
    """Kind of the norms; layer: LayerNorm, which has a bias as well as a weight."""
    tie_word_embeddings: bool = False
    learned_position_rows: int = 0
    """Rows of a learned position table; 0 for rotary positions."""
    extra_params: int = 0
    """Parameters outside embeddings, layers and the last norm, kept in 16 bits."""
    residual: Residual | None = None
    """Residual connections; None: plain ones."""
    towers: tuple[Tower, ...] = ()
    """Encoders of images and sounds beside the language model."""
    encoder_flops: float = 0.0
    """FLOPs of the towers for each new token of a prompt, as a mean over prompts."""
    mtp: tuple[LayerGroup, ...] = ()
    """Layers of multi-token-prediction modules, counted only on request."""
    precision: ModelPrecision = PLAIN
    confidence: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    """Sentences on what was assumed of a model that only its name describes."""

    @property
    def mixers(self) -> tuple[tuple[Mixer, int], ...]:
        """The different mixers, each with its number of layers, in order of appearance."""
        return mixers_of(self.layers)

    @property
    def prompt_mixers(self) -> tuple[tuple[Mixer, int], ...]:
        """The `mixers` of the layers that every token of a prompt passes."""
        return mixers_of(tuple(group for group in self.layers if not group.skips_prompt))

    @property
    def ffns(self) -> tuple[tuple[Ffn, int], ...]:
        """The different FFNs, each with its number of layers, in order of appearance."""
        return ffns_of(self.layers)

    @property
    def num_layers(self) -> int:
        """Number of all layers."""
        return sum(group.count for group in self.layers)

    @property
    def num_moe_layers(self) -> int:
        """Number of layers with a mixture of experts."""
        return sum(count for ffn, count in self.ffns if isinstance(ffn, Moe))

    @property
    def num_dense_layers(self) -> int:
        """Number of layers without a mixture of experts."""
        return self.num_layers - self.num_moe_layers

    @property
    def experts(self) -> Moe | None:
        """The mixture of experts of the first layer that has one."""
        return next((ffn for ffn, _ in self.ffns if isinstance(ffn, Moe)), None)

    @property
    def num_experts(self) -> int:
        """Routed experts per layer; 0 if no layer has any."""
        return self.experts.num_experts if self.experts else 0

    @property
    def dtype(self) -> str:
        """The 16-bit type of what is not quantized."""
        return self.precision.dtype

    @property
    def dtype_bytes(self) -> int:
        """Bytes of one element between operators."""
        return self.precision.dtype_bytes

    @property
    def is_fp8(self) -> bool:
        """Whether its layers' matrices are multiplied in fp8."""
        _, multiplied = self.precision.matrix(self.precision.attention)
        return multiplied.peak == "fp8_flop_per_s"

    @property
    def peaks(self) -> tuple[str, ...]:
        """The compute peaks at which its layers' matrices are multiplied: fields of `GpuSpec`."""
        precision = self.precision
        classes = [precision.attention]
        classes += [
            precision.experts if isinstance(ffn, Moe) else precision.ffn for ffn, _ in self.ffns
        ]
        return tuple(dict.fromkeys(precision.matrix(weights)[1].peak for weights in classes))

    @property
    def linear_dtype(self) -> str:
        """Format of the layers' matrices; embeddings, norms, routers and the LM head keep
        ``dtype``."""
        return self.precision.linear

    @property
    def kv_cache_dtype(self) -> str:
        """Format of keys and values."""
        return self.precision.kv

    @property
    def embedding_params(self) -> int:
        """Parameters of the token table (an untied LM head has equally many)."""
        return self.vocab_size * self.hidden_size

    def params(self, *, active: bool = False, with_mtp: bool = False) -> Params:
        """Count parameters by class; ``active``: only those that one token of text passes
        through."""
        norm = self.hidden_size * (2 if self.norm == "layer" else 1)
        tables = self.embedding_params * (1 if self.tie_word_embeddings else 2)
        positions = self.learned_position_rows * self.hidden_size
        found = Params(
            embedding=tables,
            others=norm + positions + self.extra_params,
            towers=0 if active else sum(tower.params for tower in self.towers),
        )
        for group in (*self.layers, *(self.mtp if with_mtp else ())):
            layer = Params(others=group.norms * norm)
            if group.mixer:
                layer += group.mixer.params(self.hidden_size)
            if group.ffn:
                layer += group.ffn.params(self.hidden_size, active=active)
            found += layer * group.count
        if with_mtp:
            # Each module joins the hidden state with an embedding: norms of both, and a projection.
            modules = sum(group.count for group in self.mtp)
            joined = Params(attention=2 * self.hidden_size**2, others=3 * norm)
            found += joined * modules
        return found

    @property
    def total_params(self) -> int:
        """Number of all parameters, embeddings and LM head included."""
        return self.params().total

    @property
    def active_params(self) -> int:
        """Parameters that one token passes through, embeddings and LM head included."""
        return self.params(active=True).total

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.precision.weight_bytes(self.params())

    @property
    def states(self) -> tuple[tuple[State, int], ...]:
        """The state of each different mixer, and its number of layers."""
        return tuple((mixer.state(self.precision), count) for mixer, count in self.mixers)

    @property
    def growing_state_bytes_per_token(self) -> Fraction:
        """Bytes that one more token adds to a sequence, all layers, however long it is.

        It is a fraction if an entry stands for several tokens. Full windows and recurrent states do
        not grow: see `fixed_state_bytes_per_sequence`.
        """
        return sum((state.growing * count for state, count in self.states), Fraction(0))

    @property
    def fixed_state_bytes_per_sequence(self) -> int:
        """Bytes of a sequence that do not grow, with every window full: all layers, rounded up."""
        fixed = sum((state.largest_fixed * count for state, count in self.states), Fraction(0))
        return -int(-fixed // 1)

    @property
    def kv_bytes_per_token(self) -> int:
        """`growing_state_bytes_per_token` as whole bytes, rounded up."""
        return -int(-self.growing_state_bytes_per_token // 1)

    def state_bytes(self, context: int, generated: int = 0) -> int:
        """Return the bytes of a sequence of ``context`` tokens, all layers, rounded up.

        ``generated`` of them come after its prompt, which is computed.
        """
        states = (state.at(context, generated) * count for state, count in self.states)
        return -int(-sum(states, Fraction(0)) // 1)

    @property
    def clips(self) -> tuple[Clip, ...]:
        """The clips of any layer, in the order of `sim.shape`; a step must sum contexts for
        each."""
        works = (mixer.attention(self.precision) for mixer, _ in self.mixers)
        return ordered(clip for work in works for clip in work.clips())

    @property
    def clip_tokens(self) -> tuple[int, ...]:
        """Those of `clips` that are lengths of the whole context."""
        return tuple(clip for clip in self.clips if isinstance(clip, int))


@cache
def mixers_of(layers: tuple[LayerGroup, ...]) -> tuple[tuple[Mixer, int], ...]:
    """Return the different mixers of ``layers``, each with its number of layers."""
    return _counted((group.mixer, group.count) for group in layers)


@cache
def ffns_of(layers: tuple[LayerGroup, ...]) -> tuple[tuple[Ffn, int], ...]:
    """Return the different FFNs of ``layers``, each with its number of layers."""
    return _counted((group.ffn, group.count) for group in layers)


def _counted(parts: Iterable[tuple[Part | None, int]]) -> tuple[tuple[Part, int], ...]:
    counts: dict[Part, int] = {}
    for part, count in parts:
        if part is not None:
            counts[part] = counts.get(part, 0) + count
    return tuple(counts.items())


def in_dtype(model: ModelSpec, dtype: str) -> ModelSpec:
    """Return the model with every part in its checkpoint's own 16-bit type changed to ``dtype``;
    auto changes nothing."""
    if dtype == "auto":
        return model
    old, precision = model.precision.dtype, model.precision
    names = ("dtype", "attention", "ffn", "experts", "embedding", "kv")
    changed = {name: dtype for name in names if getattr(precision, name) == old}
    return replace(model, precision=replace(precision, **changed))


def quantized(model: ModelSpec, *, linear: str | None = None, kv_cache: str = "auto") -> ModelSpec:
    """Return the model with its layers' matrices, and its KV cache, stored in fewer bits.

    Both are formats of ``formats.yaml``; ``linear`` None and ``kv_cache`` auto leave them.
    """
    precision = model.precision
    if linear is not None:
        precision = precision.with_matrices(linear)
    if kv_cache != "auto":
        precision = replace(precision, kv=kv_cache)
    return replace(model, precision=precision)
