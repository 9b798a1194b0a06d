"""Grouped-query attention over a window: the newest tokens, and the first few if asked.

Sliding-window layers of Mistral, Gemma and GPT-OSS; StreamingLLM also keeps 4 sink tokens beside
the window (arXiv 2309.17453).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from costmodels.formats import ModelPrecision
from costmodels.models.layers.gqa import OverGqa
from costmodels.models.layers.parts import AttentionWork, State, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow(OverGqa):
    """``gqa`` over the newest ``window`` tokens; nothing older is stored or read."""

    kind: ClassVar[str] = "sliding"

    window: int
    sink_tokens: int = 0
    """First tokens of a sequence, kept and read forever."""

    @property
    def kept_tokens(self) -> int:
        """Most tokens that are stored."""
        return self.window + self.sink_tokens

    def state(self, precision: ModelPrecision) -> State:
        """Return a state that stops growing once the window is full."""
        return State(windows=(Window(self.kept_tokens, self._token_bytes(precision)),))

    def attention(self, precision: ModelPrecision) -> AttentionWork:
        """Return attention with contexts and query-key pairs clipped to the window."""
        term = self.gqa.term(float(self._token_bytes(precision)), self.kept_tokens)
        return AttentionWork(decode=(term,), prefill=(term,))

    def _token_bytes(self, precision: ModelPrecision) -> Fraction:
        return self.gqa.state(precision).growing
