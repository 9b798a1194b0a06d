"""Engine options, named as vLLM names them, and which of them exclude each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.engine.speculation import Speculation
from sim.errors import ScenarioError
from sim.kv.layout import PLAIN, KVLayout
from sim.kv.shared_prefix import KINDS
from sim.shape import Clip


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine options, named as vLLM names them."""

    max_num_batched_tokens: int = 8192
    """Token budget of one step."""
    max_num_seqs: int = 1024
    """Most requests running at once."""
    max_model_len: int = 32768
    """Longest prompt plus output; longer requests are rejected."""
    block_size: int = 16
    """Tokens per KV block."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in a step; 0: no limit but the token budget."""
    num_gpu_blocks: int = 4096
    """KV blocks in the pool, the null block included."""
    kv_layout: KVLayout = PLAIN
    """How many blocks, all of one size in bytes, a sequence holds."""
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    """What happens to a preempted request's KV: computed again, or moved to the host."""
    num_cpu_blocks: int = 0
    """Blocks of host memory for swapping. Victims beyond them are recomputed."""
    swap_ns_per_block: float = 0.0
    """Time on the host link per block, in either direction."""
    clip_tokens: tuple[Clip, ...] = ()
    """What the cost model clips contexts to, in the order of `sim.shape.ordered`."""
    shared_prefix_attention: str = "none"
    """Whether the attention kernel reads shared prefixes once: ``none``; ``cascade``: the prefix
    common to all running requests; ``tree``: every shared prefix (see `sim.kv.shared_prefix`)."""
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    """Plan the next step before the tokens of the last one are read (two steps in flight)."""
    speculation: Speculation | None = None
    """How tokens are drafted and accepted; None: a decode step gives one token per sequence."""
    fast_forward: bool = True
    """Jump over runs of equal steps. Off: every step is planned, with the same results."""
    seed: int = 0
    """Seed of the host's varying launch times."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ScenarioError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must not be smaller than "
                f"max_num_seqs ({self.max_num_seqs}): every running request decodes every step"
            )
        if self.shared_prefix_attention not in KINDS:
            raise ScenarioError(
                f"shared_prefix_attention is {self.shared_prefix_attention!r}; it is one of "
                + ", ".join(KINDS)
            )
        if self.speculation is not None:
            self._check_speculation(self.speculation)
        longest = self.long_prefill_token_threshold or self.max_num_batched_tokens
        if self.aligns_chunks and min(longest, self.max_num_batched_tokens) < self.block_size:
            raise ScenarioError(
                "with mamba_cache_mode align prompts are computed in whole blocks of "
                f"{self.block_size:,} tokens: max_num_batched_tokens "
                f"({self.max_num_batched_tokens:,}) and long_prefill_token_threshold "
                f"({self.long_prefill_token_threshold:,}; 0: none) must allow for one"
            )

    def _check_speculation(self, speculation: Speculation) -> None:
        if self.max_num_batched_tokens <= speculation.most_drafts:
            raise ScenarioError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) has no room for one "
                f"sequence and the {speculation.most_drafts} tokens drafted for it"
            )
        if self.shared_prefix_attention != "none":
            raise ScenarioError(
                f"shared_prefix_attention {self.shared_prefix_attention} is not modelled together "
                "with speculation: set it to none"
            )
        if self.kv_layout.fixed_pages:
            raise ScenarioError(
                "speculation with recurrent layers is not modelled: rejected tokens would have to "
                "be taken out of their states again"
            )

    @property
    def unread_steps(self) -> int:
        """Number of steps that are launched and not read when a step is planned."""
        return 1 if self.async_scheduling else 0

    @property
    def tokens_beyond(self) -> int:
        """Tokens beyond its last one for which a sequence may hold blocks."""
        if self.speculation is None:
            return 0
        drafts = self.speculation.most_drafts
        return self.speculation.tokens_ahead(drafts, unread_steps=self.unread_steps) - 1

    @property
    def aligns_chunks(self) -> bool:
        """Whether prompts are cut at block boundaries, so that recurrent states can be kept
        there."""
        return self.kv_layout.checkpoint_pages > 0 and self.enable_prefix_caching


def why_no_beams(config: EngineConfig) -> str | None:
    """Return the option that is not modeled together with beam search, or None if there is none."""
    if config.speculation is not None:
        return "speculation"
    if config.kv_layout != PLAIN:
        return "layers that keep less than all their keys and values"
    if config.shared_prefix_attention != "none":
        return "shared_prefix_attention"
    return None
