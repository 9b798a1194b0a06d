"""Options of an engine that speculates: how many tokens are drafted, and how many are accepted."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import ScenarioError
from sim.protocols import Acceptance

MOST_DRAFTS = 250
"""Most drafted tokens per sequence and step: the tokens a step gives are stored in one byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Each decode step verifies drafted tokens of every decoding sequence, then drafts anew.

    All sequences of a step have equally many drafts. The number depends on how many sequences
    decode: the more there are, the less spare compute is left for drafts that may be rejected.
    """

    acceptance: Acceptance
    """Decides which drafts the target accepts."""
    drafts_by_seqs: tuple[tuple[int, int], ...]
    """(number of decoding sequences from which on, drafts per sequence), ascending from 1."""
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
        """The most tokens that are drafted per sequence in a step."""
        return max(drafts for _, drafts in self.drafts_by_seqs)

    def drafts(self, seqs: int) -> int:
        """Return the drafts per sequence when ``seqs`` sequences decode."""
        found = self.drafts_by_seqs[0][1]
        for least, drafts in self.drafts_by_seqs:
            if least > seqs:
                break
            found = drafts
        return found

    def tokens_ahead(self, drafts: int, *, unread_steps: int) -> int:
        """Return the tokens beyond a sequence's context for which a step with ``drafts`` needs
        blocks.

        These are the step's own tokens, those that the drafter writes ahead and, while earlier
        steps are unread, the most that those may have accepted (vLLM's ``num_lookahead_tokens`` and
        output placeholders).
        """
        if not drafts:
            return 1
        ahead = (1 + drafts) * (1 + unread_steps)
        return ahead + drafts if self.lookahead else ahead
