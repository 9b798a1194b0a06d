"""One request on its way through an engine: what it asks for, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from sim.beams import Beams


class Status(IntEnum):
    """Where a request is. Final from `FINISHED` on; `UNFINISHED` means that the run was cut."""

    WAITING = 0
    PREFILLING = 1
    DECODING = 2
    FINISHING = 3
    """The last token is planned but not read yet: the request holds its blocks and computes
    nothing."""
    TRANSFERRING = 4
    """The KV is on its way from the engine that prefilled it to the one that will decode it."""
    FINISHED = 5
    REJECTED = 6
    FAILED = 7
    """Its engine failed, and no retry followed."""
    UNFINISHED = 8
    ABANDONED = 9
    """The client gave up waiting."""


@dataclass(eq=False, slots=True)
class Samples:
    """The answers of one request (``n`` > 1), each a sequence of its own once it decodes."""

    unforked: tuple[int, ...]
    """Output tokens of the further answers that have not begun."""
    num_open: int
    """Number of answers that are not complete."""
    cancelled: bool = False
    """The client has given up on all of them."""


@dataclass(eq=False, slots=True)
class SharedBlocks:
    """Full blocks of a prompt that several answers read and none writes."""

    blocks: int
    holders: int


@dataclass(eq=False, slots=True)
class Gang:
    """Requests of a static batch, which leave together when the last of them is done."""

    members: int = 0
    done: list[Request] = field(default_factory=list)

    def leave(self, finishing: list[Request]) -> None:
        """Remove one member early; the others finish if all of them are done."""
        self.members -= 1
        self.finish(finishing)

    def finish(self, finishing: list[Request]) -> None:
        """Let all members finish, once all of them are done."""
        if len(self.done) == self.members:
            finishing.extend(self.done)
            self.done.clear()
            self.members = 0


@dataclass(eq=False, slots=True)
class Request:
    """Mutable state of one request. Token counts follow vLLM's scheduler.

    While the request decodes, ``num_computed_tokens`` and ``num_sampled_tokens`` have the values
    from when it joined the decode group; `sim.engine.decode_group` knows how far it has come since.
    """

    index: int
    """Row in the request table."""
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    """Tokens to sample; at least 1 here (a prefill-only request samples one that no client sees).
    """
    priority: int = 0
    tenant: int = 0
    """Class of the request in the request table; classes are tenants."""
    width: int = 1
    """Number of sequences that the request is in a decode step: its hypotheses, or 1."""
    num_unforked: int = 0
    """Number of further answers that begin when the prompt is computed."""
    is_several: bool = False
    """Whether the request has, or had, further answers or hypotheses."""
    status: Status = Status.WAITING
    num_target_tokens: int = 0
    """Tokens to prefill: the prompt and, after a preemption, the tokens sampled before it."""
    num_computed_tokens: int = 0
    num_sampled_tokens: int = 0
    """Planned samples, those in flight included."""
    num_blocks: int = 0
    """KV blocks the request holds while waiting or prefilling."""
    joined_at: int = 0
    """Decode steps the engine had planned when the request joined the decode group."""
    cached_tokens: int = 0
    """Prefix tokens found in the cache at the last admission."""
    num_preemptions: int = 0
    nodes: list[tuple[int, int]] | None = None
    """(cache node, its blocks) of the request's content, found at its first lookup."""
    pinned: list[tuple[int, int]] = field(default_factory=list)
    """Cache nodes the request pins, and how many leading blocks of each (`sim.kv.pool`)."""
    pinned_blocks: int = 0
    """Total blocks of the pinned nodes."""
    reserved_tokens: int = 0
    """Tokens whose blocks the request has held since admission, in whole blocks; 0: no reservation.
    """
    cancelled: bool = False
    """The client has given up: nothing is recorded of the request from then on."""
    loaded: tuple[tuple[int, int], ...] = ()
    """(tier, tokens) that make up the prefix given before admission; tier 0 is device memory.
    Empty: all of the hit was in device memory (`sim.engine.loading`)."""
    swapped_blocks: int = 0
    """Blocks on the host while the request waits to be swapped in."""
    sample: int = 0
    """Index of this answer among the answers of its request."""
    samples: Samples | None = None
    """What the answers of a request have in common; None: there is one answer."""
    beams: Beams | None = None
    """The hypotheses of a request answered by beam search; they advance as one."""
    shared: SharedBlocks | None = None
    """Blocks of the prompt that other answers hold too."""
    gang: Gang | None = None
    """The static batch that the request leaves together with."""
    rounds: bytes = b""
    """Tokens that each decode step gave, if the engine speculates; complete when the request
    leaves."""
    last_gain: int = 1
    """Tokens given by the newest decode step."""
    lookahead_tokens: int = 0
    """Tokens beyond the computed ones whose blocks the request still holds after it left the decode
    group."""
    handover: Any = None
    """The transfer from the engine that prefills the request (`sim.fleet.handover`), once it is
    known."""

    def ask_answers(self, further: tuple[int, ...]) -> None:
        """Ask for several answers; ``further`` are the output tokens of those after the first."""
        self.samples = Samples(further, 1 + len(further))
        self.num_unforked = len(further)
        self.is_several = True

    def ask_beams(self, beams: Beams) -> None:
        """Ask for an answer by beam search."""
        self.beams = beams
        self.width = beams.width
        self.is_several = True

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens left to prefill."""
        return self.num_target_tokens - self.num_computed_tokens
