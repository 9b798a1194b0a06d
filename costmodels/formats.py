"""Number formats, and the formats in which each part of a model is stored and multiplied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from costmodels.datafile import find_name, read_data

BF16_PEAK = "bf16_flop_per_s"
DTYPE_BYTES = {"bfloat16": 2, "float16": 2}
# Scales of groups this large are a thousandth of the bytes: stored, but not counted as read.
_UNCOUNTED_GROUP = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One row of ``formats.yaml``: what an element costs."""

    name: str
    bits: int
    scale_bits: int = 0
    zero_bits: int = 0
    group: int = 1
    """Elements that share a scale and a zero point."""
    input: str | None = None
    """The format that the left matrix is converted to; None: it stays in 16 bits."""
    peak: str = BF16_PEAK
    residual_tokens: int = 0
    kernel_rows: int | None = None
    """Most rows that its kernel multiplies with a matrix at once; None: no limit."""
    source: str = ""

    @property
    def bits_per_element(self) -> Fraction:
        """Stored bits per element, scales included: 4.25 for mxfp4."""
        return self.bits + Fraction(self.scale_bits + self.zero_bits, self.group)

    @property
    def moved_bytes(self) -> float:
        """Bytes read or written per element."""
        if self.group >= _UNCOUNTED_GROUP:
            return self.bits / 8
        return float(self.bits_per_element / 8)

    def num_bytes(self, elements: int) -> int:
        """Return the bytes of ``elements``, scales included, rounded up."""
        return -int(-elements * self.bits_per_element // 8)


@cache
def load_format(name: str) -> Format:
    """Return a row of ``formats.yaml``. Raises `ScenarioError` for an unknown name."""
    rows = read_data("formats.yaml")["formats"]
    name = find_name("number format", name, {row: row for row in rows})
    return Format(name=name, **rows[name])


def format_names() -> list[str]:
    """Return the names of all formats."""
    return list(read_data("formats.yaml")["formats"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Numbers of parameters, by the class whose format they are stored in."""

    attention: int = 0
    ffn: int = 0
    experts: int = 0
    embedding: int = 0
    others: int = 0
    """Norms, biases, routers, convolutions: never quantized."""
    towers: int = 0
    """Vision and audio towers, with their projectors: never quantized."""

    @property
    def total(self) -> int:
        """Parameters of all classes together."""
        return self.matrices + self.embedding + self.others + self.towers

    @property
    def matrices(self) -> int:
        """Parameters that a quantization of the layers' matrices changes."""
        return self.attention + self.ffn + self.experts

    def __add__(self, other: Params) -> Params:
        return Params(
            attention=self.attention + other.attention,
            ffn=self.ffn + other.ffn,
            experts=self.experts + other.experts,
            embedding=self.embedding + other.embedding,
            others=self.others + other.others,
            towers=self.towers + other.towers,
        )

    def __mul__(self, layers: int) -> Params:
        return Params(
            attention=self.attention * layers,
            ffn=self.ffn * layers,
            experts=self.experts * layers,
            embedding=self.embedding * layers,
            others=self.others * layers,
            towers=self.towers * layers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPrecision:
    """Formats by what is stored, as names of ``formats.yaml``.

    The matrices are in three classes, which quantization treats separately: attention (and linear
    attention), dense FFNs with shared experts, routed experts.
    """

    dtype: str = "bfloat16"
    """16-bit format of activations between operators, norms, biases, routers, and all that is
    not named."""
    attention: str = "bfloat16"
    ffn: str = "bfloat16"
    experts: str = "bfloat16"
    embedding: str = "bfloat16"
    """Format of the token table and the LM head."""
    activations: str | None = None
    """Format of the activations that quantized matrices are multiplied with; None: as their own
    format asks for."""
    kv: str = "bfloat16"
    state: str = "float32"
    """Format of recurrent states; ``conv``: of the inputs that short convolutions keep, which
    engines leave in the model's own (vLLM ``mamba_cache_dtype`` auto)."""
    conv: str = "bfloat16"
    communication: str | None = None
    """Format that all-reduces carry; None: ``dtype``."""

    @property
    def dtype_bytes(self) -> int:
        """Bytes per element of an activation between operators."""
        return load_format(self.dtype).bits // 8

    @property
    def communication_bytes(self) -> float:
        """Bytes per element in an all-reduce."""
        return load_format(self.communication or self.dtype).moved_bytes

    @property
    def linear(self) -> str:
        """The formats of the layers' matrices, joined by ``+`` if they differ."""
        return "+".join(dict.fromkeys((self.attention, self.ffn, self.experts)))

    def matrix(self, weights: str) -> tuple[Format, Format]:
        """Return the format of a matrix stored in ``weights``, and of the activations multiplied
        with it."""
        stored = load_format(weights)
        if stored.bits >= 16 or (self.activations is None and stored.input is None):
            return stored, load_format(self.dtype)
        return stored, load_format(self.activations or stored.input or self.dtype)

    def weight_bytes(self, params: Params) -> int:
        """Return the bytes of parameters, each class in its format."""
        return sum(self.weight_bytes_by_format(params).values())

    def weight_bytes_by_format(self, params: Params) -> dict[str, int]:
        """Return the bytes of parameters by format, largest first."""
        found: dict[str, int] = {}
        for weights, count in (
            (self.attention, params.attention),
            (self.ffn, params.ffn),
            (self.experts, params.experts),
            (self.embedding, params.embedding),
            (self.dtype, params.others + params.towers),
        ):
            if count:
                found[weights] = found.get(weights, 0) + load_format(weights).num_bytes(count)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def with_matrices(self, weights: str) -> ModelPrecision:
        """Return a copy with every matrix of the layers in one format."""
        return replace(self, attention=weights, ffn=weights, experts=weights)


def precision_of(dtype: str) -> ModelPrecision:
    """Return a precision with everything in one 16-bit type, except recurrent states in 32 bits."""
    return ModelPrecision(
        dtype=dtype,
        attention=dtype,
        ffn=dtype,
        experts=dtype,
        embedding=dtype,
        kv=dtype,
        conv=dtype,
    )
