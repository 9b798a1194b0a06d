"""One request on its way through an engine: what was asked, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from sim.beams import Beams


class Status(IntEnum):
    """Where a request is. Final from `FINISHED` on; `UNFINISHED`: the run was cut."""

    WAITING = 0
    PREFILLING = 1
    DECODING = 2
    FINISHING = 3
    """Its last token is planned but not yet read: it holds its blocks and computes nothing."""
    TRANSFERRING = 4
    """Its KV is on the way from the engine that prefilled it to the one that will decode it."""
    FINISHED = 5
    REJECTED = 6
    FAILED = 7
    """What served it went down, and nobody tried again."""
    UNFINISHED = 8
    ABANDONED = 9
    """Its client gave up waiting."""


@dataclass(eq=False, slots=True)
class Samples:
    """The answers of one request (``n`` > 1), each a sequence of its own once it decodes."""

    unforked: tuple[int, ...]
    """Output tokens of the answers beside the first that have not begun."""
    num_open: int
    """Answers that are not complete."""
    cancelled: bool = False
    """Nobody waits for any of them."""


@dataclass(eq=False, slots=True)
class SharedBlocks:
    """Full blocks of a prompt that several answers read; nobody writes them."""

    blocks: int
    holders: int


@dataclass(eq=False, slots=True)
class Gang:
    """Requests that leave together, when the last of them is done: static batching."""

    members: int = 0
    done: list[Request] = field(default_factory=list)

    def leave(self, finishing: list[Request]) -> None:
        """One leaves without the others; they finish if all of them are done."""
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

    While decoding, ``num_computed_tokens`` and ``num_sampled_tokens`` are those at the time the
    request joined the decode group; `sim.engine.decode_group` knows how far it has come since.
    """

    index: int
    """Row in the request table."""
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    """Tokens it will sample; at least 1 here (a prefill-only request samples one, unseen)."""
    priority: int = 0
    tenant: int = 0
    """Whose request it is: its class in the request table."""
    status: Status = Status.WAITING
    num_target_tokens: int = 0
    """Tokens whose KV must be computed before the next one is sampled: prompt plus sampled."""
    num_computed_tokens: int = 0
    num_sampled_tokens: int = 0
    """Planned samples, the ones in flight included."""
    num_blocks: int = 0
    """KV blocks it holds, while waiting or prefilling."""
    joined_at: int = 0
    """Decode steps the engine had planned when it joined the decode group."""
    cached_tokens: int = 0
    """Prefix tokens found in the cache when it was last admitted."""
    num_preemptions: int = 0
    nodes: list[tuple[int, int]] | None = None
    """(cache node, its blocks) of the request's content, found at its first lookup."""
    pinned: list[tuple[int, int]] = field(default_factory=list)
    """Cache nodes it pins, and how many of each node's leading blocks (`sim.kv.pool`)."""
    pinned_blocks: int = 0
    """How many blocks that is in all."""
    reserved_tokens: int = 0
    """Tokens whose blocks it has held since it was admitted, whole blocks; 0: none beforehand."""
    loaded: tuple[tuple[int, int], ...] = ()
    """(tier, tokens) that make up the prefix it was given before it was admitted, tier 0 being
    device memory; empty: it found all it has there (`sim.engine.loading`)."""
    swapped_blocks: int = 0
    """Blocks it has on the host, while it waits to be swapped in."""
    sample: int = 0
    """Which answer of its request this is; 0: the first, or the only one."""
    samples: Samples | None = None
    """Of a request with several answers: what they have in common."""
    beams: Beams | None = None
    """The hypotheses of a request that is answered by beam search; they advance as one."""
    shared: SharedBlocks | None = None
    """Blocks of its prompt that its other answers hold too."""
    gang: Gang | None = None
    """The batch it may only leave together with."""
    rounds: bytes = b""
    """Tokens that each of its decode steps gave, where the engine speculates; up to its leaving."""
    last_gain: int = 1
    """Tokens of the newest of them."""
    lookahead_tokens: int = 0
    """Tokens beyond those computed whose blocks it holds, since it left the decode group."""
    cancelled: bool = False
    """Nobody waits for it any more: nothing is noted of it from then on."""
    handover: Any = None
    """On its way from the engine that prefills it (`sim.fleet.handover`), from when that is
    known."""

    @property
    def num_unforked(self) -> int:
        """Further answers that begin when its prompt is computed."""
        return 0 if self.samples is None else len(self.samples.unforked)

    @property
    def width(self) -> int:
        """Sequences that it is in a decode step."""
        return 1 if self.beams is None else self.beams.width

    @property
    def is_several(self) -> bool:
        """Whether it has answers or hypotheses beside the first, or had."""
        return self.samples is not None or self.beams is not None

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens left to prefill."""
        return self.num_target_tokens - self.num_computed_tokens
