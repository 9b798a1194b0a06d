"""Options of a replica's engine, and which of them exclude each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.errors import ScenarioError
from sim.kv.layout import PLAIN, KVLayout
from sim.kv.shared_prefix import KINDS
from sim.protocols import Acceptance
from sim.shape import Clip

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerConfig:
    """What each process of an API server works, in nanoseconds (`sim.engine.api_server`)."""

    request_ns: float
    """On a request, whatever its length."""
    prompt_token_ns: float
    part_ns: int
    """On one sequence's tokens of one step."""
    servers: int = 1
    """Processes; requests are dealt to them in turn, and the parts of a step evenly."""

    def __post_init__(self) -> None:
        if min(self.request_ns, self.prompt_token_ns, self.part_ns) < 0 or self.servers < 1:
            raise ScenarioError("an API server's costs are at least 0, and there is at least one")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of a replica's engine, named as vLLM names them.

    One engine stands for all data-parallel ranks and pipeline stages of a replica. What vLLM sets
    per rank is their sum here, under a name of its own.
    """

    step_token_limit: int = 8192
    """Token budget of a step: ``max_num_batched_tokens`` of every rank and micro-batch."""
    running_seq_limit: int = 1024
    """Most sequences running at once: ``max_num_seqs`` of every rank."""
    max_model_len: int = 32768
    """Longest prompt plus output; longer requests are rejected."""
    block_size: int = 16
    """Tokens per KV block."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in a step; 0: no limit but the token budget."""
    replica_blocks: int = 4096
    """KV blocks of all ranks (their ``num_gpu_blocks``), with one null block for the replica."""
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
    api_server: ApiServerConfig | None = None
    """What stands between clients and the engine; None: requests reach it, and answers leave it,
    at once."""
    seed: int = 0
    """Seed of the host's varying launch times."""

    def __post_init__(self) -> None:
        for name in ("step_token_limit", "running_seq_limit", "max_model_len", "block_size"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.step_token_limit < self.running_seq_limit:
            raise ScenarioError(
                f"step_token_limit ({self.step_token_limit}) must not be smaller than "
                f"running_seq_limit ({self.running_seq_limit}): every running request decodes in "
                "every step"
            )
        if self.shared_prefix_attention not in KINDS:
            raise ScenarioError(
                f"shared_prefix_attention is {self.shared_prefix_attention!r}; it is one of "
                + ", ".join(KINDS)
            )
        if self.speculation is not None:
            self._check_speculation(self.speculation)
        longest = self.long_prefill_token_threshold or self.step_token_limit
        if self.aligns_chunks and min(longest, self.step_token_limit) < self.block_size:
            raise ScenarioError(
                "with mamba_cache_mode align prompts are computed in whole blocks of "
                f"{self.block_size:,} tokens: max_num_batched_tokens "
                f"({self.step_token_limit:,}) and long_prefill_token_threshold "
                f"({self.long_prefill_token_threshold:,}; 0: none) must allow for one"
            )

    def _check_speculation(self, speculation: Speculation) -> None:
        if self.step_token_limit <= speculation.most_drafts:
            raise ScenarioError(
                f"max_num_batched_tokens ({self.step_token_limit}) has no room for one "
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
