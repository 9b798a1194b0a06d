"""Which family of operator tables each operator of a step belongs to."""

from __future__ import annotations

from typing import NamedTuple

from costmodels.models.layers.delta import Gdn, Kda
from costmodels.models.layers.mla import Mla
from costmodels.models.layers.parts import Mixer
from costmodels.tables.kinds import KINDS, TableKind
from costmodels.tables.lookup import Labels
from costmodels.work import Array, Operator

# A grouped_gemm table contains all of these.
EXPERT_OPERATORS = ("expert_gate_up", "expert_activation", "expert_down", "expert_sum")
# These are priced as all-reduces, but gather logits.
_GATHERS = ("logits_gather",)
_NOT_OF_A_STEP: tuple[TableKind, ...] = ("copy", "launch")
PRICED: tuple[TableKind, ...] = tuple(kind for kind in KINDS if kind not in _NOT_OF_A_STEP)
"""The families that price operators of a step."""
ATTENTION: tuple[TableKind, ...] = (
    "prefill_attention",
    "decode_attention",
    "mla_decode",
    "kda_chunk",
    "kda_recurrent",
    "gdn_chunk",
    "gdn_recurrent",
)
"""The families that depend on sequences and their contexts."""


def family_of(operator: Operator, mixers: tuple[Mixer, ...] = ()) -> TableKind:
    """Return the family of an operator; a launch of attention has that of the mixer's decodes.

    ``mixers`` are the model's; an attention operator belongs to one of them.
    """
    name = base_name(operator)
    if name in EXPERT_OPERATORS or operator.kind == "grouped_gemm":
        return "grouped_gemm"
    if operator.kind == "attention":
        mixer = next((m for m in mixers if operator.name.startswith(f"{m.kind} ")), None)
        mixer = mixer or next(iter(mixers), None)
        return decode_family(mixer) if mixer else "decode_attention"
    if operator.kind == "elementwise":
        return "embedding" if name == "embedding" else "elementwise"
    if name in _GATHERS:
        return "all_gather"
    return "send_recv" if operator.kind == "send" else operator.kind


def decode_family(mixer: Mixer) -> TableKind:
    """Return the family that serves a mixer's decodes; unmeasured kinds count as plain
    attention."""
    if isinstance(mixer, Mla):
        return "mla_decode"
    if isinstance(mixer, Kda):
        return "kda_recurrent"
    return "gdn_recurrent" if isinstance(mixer, Gdn) else "decode_attention"


def prefill_family(mixer: Mixer) -> TableKind:
    """Return the family that serves a mixer's prompts."""
    if isinstance(mixer, Kda):
        return "kda_chunk"
    return "gdn_chunk" if isinstance(mixer, Gdn) else "prefill_attention"


def base_name(operator: Operator) -> str:
    """Return its name without the kind of layer in front, which models with several kinds have."""
    return operator.name.rpartition(" ")[2]


class Lack(Exception):  # noqa: N818 - it says why, and is caught where it is asked
    """Says why no table serves an operator."""


class TableTimes(NamedTuple):
    """Seconds of all calls of an operator in a step, launches included, and labels: ``[n]``."""

    seconds: Array
    labels: Labels
    is_cool: bool
    """Whether it was timed in bursts too short for the device to throttle."""
