"""What an engine that speculates knows of it: how much is drafted, and what comes of the drafts."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import ScenarioError
from sim.protocols import Acceptance

MOST_DRAFTS = 250
"""Drafted tokens a sequence and step: what a step gives is kept in a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Each decode step verifies some drafted tokens of every decoding sequence, and drafts anew.

    A step's drafts are as many for each sequence. They depend on how many sequences decode: many
    leave no room for drafts that may be rejected.
    """

    acceptance: Acceptance
    """Which drafts the target accepts."""
    drafts_by_seqs: tuple[tuple[int, int], ...]
    """(decoding sequences from which on, tokens drafted for each), ascending from 1."""
    lookahead: bool = True
    """Whether the drafter writes KV of its own beyond the tokens to verify, which takes blocks."""

    def __post_init__(self) -> None:
        starts = [seqs for seqs, _ in self.drafts_by_seqs]
        if not starts or starts[0] != 1 or sorted(set(starts)) != starts:
            raise ScenarioError("drafts by sequences must start at 1 sequence and ascend")
        if not all(0 <= drafts <= MOST_DRAFTS for _, drafts in self.drafts_by_seqs):
            raise ScenarioError(f"a sequence drafts from 0 to {MOST_DRAFTS} tokens a step")

    @property
    def most_drafts(self) -> int:
        """The most that a sequence drafts in a step."""
        return max(drafts for _, drafts in self.drafts_by_seqs)

    def drafts(self, seqs: int) -> int:
        """Tokens drafted for each of so many decoding sequences."""
        found = self.drafts_by_seqs[0][1]
        for least, drafts in self.drafts_by_seqs:
            if least > seqs:
                break
            found = drafts
        return found

    def tokens_ahead(self, drafts: int, *, unread_steps: int) -> int:
        """Tokens beyond a sequence's context that a step with so many drafts needs blocks for.

        The step's own, those that the drafter writes ahead, and, while steps before it are unread,
        as many as those may turn out to have accepted (vLLM's ``num_lookahead_tokens`` and output
        placeholders).
        """
        if not drafts:
            return 1
        ahead = (1 + drafts) * (1 + unread_steps)
        return ahead + drafts if self.lookahead else ahead
