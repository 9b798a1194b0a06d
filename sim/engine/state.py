"""What a scheduler sees of its engine, and the state the batch builder acts on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sim.clock import to_s
from sim.engine.batch import BatchBuilder
from sim.engine.decode_group import DecodeGroup
from sim.engine.loading import LoadingKV
from sim.engine.speculation import Speculation
from sim.engine.speculative_group import SpeculativeGroup
from sim.engine.waiting import WaitingQueue
from sim.errors import ScenarioError
from sim.kv.layout import PLAIN, KVLayout
from sim.kv.pool import KVCache
from sim.kv.shared_prefix import KINDS, common_prefix
from sim.request import Request, Status
from sim.shape import Clip, SharedSums


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
    """Tokens a KV block."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in a step; 0: as many as the step has room for."""
    num_gpu_blocks: int = 4096
    """KV blocks in the pool, the null block included."""
    kv_layout: KVLayout = PLAIN
    """How many blocks, of one size in bytes, a sequence holds."""
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    """What becomes of a preempted request's blocks: computed again, or moved to the host."""
    num_cpu_blocks: int = 0
    """Blocks that the host has room for (swap). A victim beyond them is recomputed."""
    swap_ns_per_block: float = 0.0
    """Time on the host link of one block, either way."""
    clip_tokens: tuple[Clip, ...] = ()
    """What the cost model clips contexts to, in the order of `sim.shape.ordered`."""
    shared_prefix_attention: str = "none"
    """Whether the attention kernel reads prefixes that sequences share once: ``cascade``, the one
    that all running requests have, or ``tree``, each (see `sim.kv.shared_prefix`)."""
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    """Plan the next step before the last one's tokens are read (two steps in flight)."""
    speculation: Speculation | None = None
    """How tokens are drafted and accepted; None: each decode step gives one token a sequence."""
    fast_forward: bool = True
    """Jump over runs of equal steps; off, every step is planned. The results are the same."""
    seed: int = 0
    """Of the host's varying launch times."""

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
        """Steps launched and not read when one is planned."""
        return 1 if self.async_scheduling else 0

    @property
    def tokens_beyond(self) -> int:
        """Tokens that a sequence may hold blocks for beyond its last one."""
        if self.speculation is None:
            return 0
        drafts = self.speculation.most_drafts
        return self.speculation.tokens_ahead(drafts, unread_steps=self.unread_steps) - 1

    @property
    def aligns_chunks(self) -> bool:
        """Whether prompts are cut at blocks, so that recurrent states can be kept there."""
        return self.kv_layout.checkpoint_pages > 0 and self.enable_prefix_caching


class EngineView:
    """Waiting and running requests and the KV pool of one engine at a scheduler call.

    A scheduler reads it and works through ``new_batch()``. ``running`` and ``prefilling`` are
    ordered by admission.
    """

    def __init__(self, config: EngineConfig, kv: KVCache, waiting: WaitingQueue) -> None:
        self.config = config
        self.kv = kv
        self.waiting = waiting
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        self.decode_group = _decode_group(config)
        self.follows_prefixes = config.shared_prefix_attention != "none"
        """Whether steps say what their sequences share (`StepShape.shared`)."""
        self.now_ns = 0
        self.num_unforked = 0
        """Answers of running requests that begin when their prompt is computed: they have places
        among ``max_num_seqs``."""
        self.num_beams = 0
        """Hypotheses of running requests beside one each: they have such places too."""
        self.newly_admitted: list[Request] = []
        self.newly_preempted: list[Request] = []
        self.loading: LoadingKV | None = None
        """Requests whose prefix comes from a tier below device memory; None: there is none."""
        self.blocks_swapped = 0
        """Blocks to move over the host link before the next step, in and out."""

    @property
    def now_s(self) -> float:
        """Simulated time of this scheduler call."""
        return to_s(self.now_ns)

    @property
    def num_running(self) -> int:
        """Running sequences: requests, each with the hypotheses it has."""
        return len(self.running) + self.num_beams

    def new_batch(self) -> BatchBuilder:
        """Start the next step."""
        self.kv.new_step()
        self.decode_group.begin_step()
        return BatchBuilder(self)

    def shared_sums(self, decode_seqs: int, held_back: Iterable[Request] = ()) -> SharedSums:
        """`StepShape.shared` of a step in which so many of the decode group decode."""
        if self.decode_group.prefixes is None:
            loading = 0 if self.loading is None else len(self.loading)
            return common_prefix(self.kv, self.running, self.prefilling, decode_seqs, loading)
        return self.decode_group.prefixes.sums(held_back) if decode_seqs else SharedSums()

    def admitted(self, request: Request) -> None:
        """Bookkeeping of `BatchBuilder.admit`."""
        self.waiting.remove(request)
        self.running[request] = None
        self.newly_admitted.append(request)
        if request.swapped_blocks:
            self.blocks_swapped += self.kv.swap_in(request)
            if not request.num_uncomputed_tokens:
                request.status = Status.DECODING
                self.decode_group.join(request)
                return
        if request.samples is not None:
            self.num_unforked += request.num_unforked
        elif request.beams is not None:
            self.num_beams += request.width - 1
        self.prefilling[request] = None
        request.status = Status.PREFILLING

    def left(self, request: Request) -> None:
        """A request runs no longer: it finished, was preempted or is not wanted any more."""
        del self.running[request]
        if request.beams is not None:
            self.num_beams -= request.width - 1

    def joined(self, request: Request) -> None:
        """A request whose prompt was computed elsewhere decodes from the next step on."""
        self.running[request] = None
        request.status = Status.DECODING
        self.decode_group.join(request)

    def preempted(self, request: Request, *, extra_blocks: int) -> None:
        """Bookkeeping of `BatchBuilder.preempt`; ``extra_blocks`` were taken for this step."""
        finishing = request.status is Status.FINISHING
        if request.status is Status.DECODING:
            self.decode_group.remove(request)
            held = self.kv.blocks_held(request, request.num_computed_tokens)
            request.num_blocks = held + extra_blocks
        if self.prefilling.pop(request, self) is None and request.samples is not None:
            self.num_unforked -= request.num_unforked
        self.left(request)
        swapped = not finishing and self._swap_out(request)
        hashed_tokens = self.hashed_tokens(request)
        self.kv.release(request, hashed_tokens, will_return=not finishing and not swapped)
        request.num_preemptions += 1
        self.newly_preempted.append(request)
        if finishing:
            return  # its last token is on its way: it ends when that is read
        if swapped:
            if request.status is Status.DECODING:
                request.num_target_tokens = request.num_computed_tokens
            request.status = Status.WAITING
            self.waiting.put_back(request)
            return
        request.status = Status.WAITING
        request.num_target_tokens = request.prompt_tokens + request.num_sampled_tokens
        request.num_computed_tokens = 0
        self.waiting.put_back(request)

    def _swap_out(self, request: Request) -> bool:
        """Move a victim's blocks to the host, if that is how to preempt, and there is room.

        Blocks that several sequences share are not moved: they would have to come back together.
        """
        if self.config.preemption_mode != "swap" or request.is_several:
            return False
        if not self.kv.swap_out(request, request.num_computed_tokens):
            return False
        self.blocks_swapped += request.swapped_blocks
        return True

    def hashed_tokens(self, request: Request) -> int:
        """Computed tokens of a running request whose content is known, so has a hash.

        With async scheduling the newest token is computed from one that has not been read yet.
        """
        computed, sampled = request.num_computed_tokens, request.num_sampled_tokens
        if request.status is Status.DECODING and request in self.decode_group.members:
            computed = self.decode_group.computed_tokens(request)
            sampled = self.decode_group.sampled_tokens(request)
            unread = self.decode_group.last_gain(request)
        else:
            unread = request.last_gain
        if request.status is Status.PREFILLING or not self.config.async_scheduling:
            return computed
        known = request.prompt_tokens + sampled - unread - 1
        return min(computed, max(request.num_target_tokens, known))


def _decode_group(config: EngineConfig) -> DecodeGroup | SpeculativeGroup:
    if config.speculation is not None:
        return SpeculativeGroup(
            config.block_size,
            config.speculation,
            clip_tokens=config.clip_tokens,
            layout=config.kv_layout,
            max_model_len=config.max_model_len,
            unread_steps=config.unread_steps,
        )
    return DecodeGroup(
        config.block_size,
        config.clip_tokens,
        config.kv_layout,
        follow_prefixes=config.shared_prefix_attention == "tree",
    )
