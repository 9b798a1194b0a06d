"""One planner of a device's memory: what fills it, and the blocks that an engine hands out.

The account by kind of matrix and of state is there for any model, also for one that does not fit;
the blocks are exact bytes as the engine plans them.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field, replace
from fractions import Fraction
from functools import cached_property

from costmodels.engines.expert_kernels import expert_kernel
from costmodels.engines.profile import EngineProfile, load_profile
from costmodels.formats import Params
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.draft_layout import draft_weight_bytes
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import LARGEST_NODE, RankShard, shard, sizes_text, valid_sizes
from costmodels.memory.entries import (
    LINKS,
    STATE,
    UNUSED,
    WEIGHTS,
    MemoryEntry,
    weight_entries,
    workspace_entries,
)
from costmodels.memory.paging import (
    MambaCacheMode,
    attention_block_tokens,
    block_unit,
    check_mamba_cache_mode,
    kv_layout,
    page_bytes,
)
from costmodels.memory.streaming import Offload, RankOffload, rank_offload
from costmodels.models.drafters import Drafter, with_drafter
from costmodels.models.layers.parts import State
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError
from sim.kv.layout import PLAIN, KVLayout

_GB = 1e9
# Lengths sampled for a mean over a block.
_LENGTHS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KVBlocks:
    """The pool of KV blocks on one rank, as its engine plans it."""

    block_size: int
    """Tokens per block: more than asked for if a recurrent state must fit one."""
    block_bytes: int
    """Bytes per page: a block of all layers whose state grows
    (`costmodels.memory.paging.page_bytes`)."""
    num_gpu_blocks: int
    """Number of pages in the pool."""
    layout: KVLayout
    """Number of pages that a sequence holds."""
    num_bytes: int
    """Bytes of the pool on the device."""
    host_bytes: int
    """Bytes of the pool in host memory."""
    free_bytes: int
    """Device bytes not used: outside ``gpu_memory_utilization``, or less than a block."""

    def fragmentation_bytes(self, rank: RankShard, prompt_tokens: int) -> int:
        """Return the empty bytes of a sequence's pages, as a mean over answers of up to a block.

        They come from last blocks filled in part, blocks in which windows begin, and layers that
        leave part of a page.
        """
        lengths = range(0, self.block_size, max(1, self.block_size // _LENGTHS))
        waste = 0
        for generated in lengths:
            tokens = prompt_tokens + generated
            pages = self.layout.pages(tokens, self.block_size, prompt_tokens)
            waste += pages * self.block_bytes - rank.state_bytes(tokens, generated)
        # If state is offloaded in part, only the part on the device counts.
        whole = len(lengths) * self.num_gpu_blocks * self.block_bytes
        return max(0, waste * self.num_bytes // whole)


@dataclass(frozen=True)
class DevicePlan:
    """One rank's device: weights and workspace, and the pool that is left for state.

    For a pipeline the rank with the most bytes is planned. Raises `ScenarioError` if a number is
    out of range; the readings raise it for a layout that does not divide the model.
    """

    model: ModelSpec
    gpu: GpuSpec
    _: KW_ONLY
    max_num_batched_tokens: int
    max_num_seqs: int
    layout: Layout = field(default_factory=Layout)
    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    num_gpu_blocks: int | None = None
    """KV blocks in place of those that fit the granted share. They may use memory beyond it, but
    not beyond the device."""
    profile: EngineProfile = field(default_factory=load_profile)
    offload: Offload | None = None
    """What is kept off the device, except for the layers in transfer."""
    drafter: Drafter | None = None
    """Drafts beside the model; its keys and values share the model's blocks."""
    writes_scores: bool = False
    """Whether attention keeps the scores of a whole prompt in memory."""
    mamba_cache_mode: MambaCacheMode = "none"
    """Recurrent states that are cached with prefixes."""
    more: tuple[MemoryEntry, ...] = ()
    """What optional features of the engine hold on the device."""

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ScenarioError(
                "gpu_memory_utilization must be above 0 and at most 1, not "
                f"{self.gpu_memory_utilization}"
            )
        if self.block_size < 1:
            raise ScenarioError(f"block_size must be at least 1 token, not {self.block_size}")
        if self.num_gpu_blocks is not None and self.num_gpu_blocks < 1:
            raise ScenarioError(f"num_gpu_blocks must be at least 1, not {self.num_gpu_blocks}")

    @cached_property
    def rank(self) -> RankShard:
        """The rank's shard, including a drafter's layers that keep keys and values."""
        return shard(with_drafter(self.model, self.drafter), self.layout)

    @cached_property
    def _target(self) -> RankShard:
        return self.rank if self.drafter is None else shard(self.model, self.layout)

    @cached_property
    def away(self) -> RankOffload:
        """The rank's weights and state kept off the device."""
        return rank_offload(self._target, self.offload)

    @cached_property
    def weights(self) -> tuple[MemoryEntry, ...]:
        """The weights on the device, by class of matrix, and a drafter's."""
        found = (*weight_entries(self._target, self.away), *self._filling)
        if self.drafter is None or self.drafter.draft is None:
            return found
        added, precision = self.draft_weight_bytes, self.drafter.draft.precision
        return (*found, MemoryEntry(WEIGHTS, "drafter", precision.linear, added))

    @property
    def _filling(self) -> tuple[MemoryEntry, ...]:
        """What the kernel of routed experts fills up their matrices with."""
        kernel = expert_kernel(self._target, self.gpu, self.profile)
        if kernel is None or kernel.stored == 1:
            return ()
        local = self._target.local
        experts = local.precision.weight_bytes(Params(experts=local.params().experts))
        more = int(experts * self._target.stage_share * Fraction(kernel.stored - 1))
        what = f"experts filled up for {kernel.name}"
        return (MemoryEntry(WEIGHTS, what, local.precision.experts, more),)

    @cached_property
    def workspace(self) -> tuple[MemoryEntry, ...]:
        """Activations or sampler, the runtime, buffers of exchanges between ranks, and what
        features hold."""
        found = workspace_entries(
            self._target,
            self.profile,
            self.max_num_batched_tokens,
            self.max_num_seqs,
            block_tokens=self.block[0],
            writes_scores=self.writes_scores,
        )
        return (*found, *self.more)

    @property
    def granted_bytes(self) -> int:
        """The share of the device that the engine may use, in bytes."""
        return int(self.gpu.hbm_bytes * self.gpu_memory_utilization)

    @cached_property
    def _limit_bytes(self) -> int:
        """Where weights, workspace and state end: the granted share, or the last of
        ``num_gpu_blocks``."""
        if self.num_gpu_blocks is None:
            return self.granted_bytes
        pool_bytes = math.ceil(self.num_gpu_blocks * self.block[1] * self.state_share)
        return min(self.gpu.hbm_bytes, self.weight_bytes + self.workspace_bytes + pool_bytes)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(entry.num_bytes for entry in self.weights)

    @property
    def draft_weight_bytes(self) -> int:
        """The drafter's part of ``weight_bytes``."""
        return 0 if self.drafter is None else draft_weight_bytes(self.drafter, self.layout)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all entries of ``workspace``."""
        return sum(entry.num_bytes for entry in self.workspace)

    @property
    def communication_bytes(self) -> int:
        """The part of ``workspace_bytes`` in buffers of exchanges between ranks."""
        return sum(entry.num_bytes for entry in self.workspace if entry.group == LINKS)

    @property
    def missing_bytes(self) -> int:
        """Bytes that weights and workspace need beyond the granted share; 0 if they fit."""
        return max(0, self.weight_bytes + self.workspace_bytes - self._limit_bytes)

    @property
    def pool_bytes(self) -> int:
        """Bytes left for the state of sequences, or of ``num_gpu_blocks``, limited by the host
        memory that holds the rest of the state."""
        left = max(0, self._limit_bytes - self.weight_bytes - self.workspace_bytes)
        offload = self.offload
        if offload is None or offload.host_bytes is None or not offload.kv_host:
            return left
        room = max(0, offload.host_bytes - self.away.host_weight_bytes)
        return min(left, int(room * self.away.kv_device_share / offload.kv_host))

    def paged_bytes(self, prompt_tokens: int, generated_tokens: int) -> int:
        """Return the bytes of one sequence's state at this length in blocks of ``block_size``
        tokens.

        A window straddles one block more than it fills; fixed states are not paged.
        """
        states = self.rank.states
        context = prompt_tokens + generated_tokens
        total = sum(
            (count * _paged(state, context, generated_tokens, self) for state, count in states),
            Fraction(0),
        )
        return -int(-total * self.state_share // 1)

    @property
    def state_share(self) -> Fraction:
        """Share of the rank's state that is on its device."""
        return self.away.kv_device_share

    def device_bytes(self, state_bytes: int) -> int:
        """Return the bytes that ``state_bytes`` of state take in the pool."""
        return -int(-state_bytes * self.state_share // 1)

    def used_bytes(self, prompt_tokens: int, generated_tokens: int) -> int:
        """Return the bytes of one sequence's state at this length on the device, token by token."""
        whole = self.rank.state_bytes(prompt_tokens + generated_tokens, generated_tokens)
        return self.device_bytes(whole)

    def beside_bytes(self, prompt_tokens: int, output_tokens: int) -> dict[str, int]:
        """Return the bytes kept off the device when the pool is full of such sequences; empty if
        there are none."""
        state = 0
        if self.offload is not None and self.offload.kv_host:
            whole = self.paged_bytes(prompt_tokens, output_tokens) / self.away.kv_device_share
            sequences = self.pool_bytes // self.paged_bytes(prompt_tokens, output_tokens)
            state = int(sequences * whole * self.offload.kv_host)
        found = {
            "weights in host memory": self.away.host_weight_bytes,
            "weights on disk": self.away.disk_weight_bytes,
            "state in host memory": state,
        }
        return {what: size for what, size in found.items() if size}

    def fragmentation_bytes(self, prompt_tokens: int, output_tokens: int) -> int:
        """Return the bytes of a sequence's blocks beyond its tokens, as a mean over answers of
        up to a block more."""
        wasted = 0
        for generated in range(output_tokens, output_tokens + self.block_size):
            used = self.used_bytes(prompt_tokens, generated)
            wasted += self.paged_bytes(prompt_tokens, generated) - used
        return wasted // self.block_size

    def entries(self, prompt_tokens: int, output_tokens: int) -> list[MemoryEntry]:
        """Return the whole device filled with such sequences; the lines add up to ``hbm_bytes``
        exactly.

        If weights and workspace do not fit, the last line is negative: the bytes that are missing.
        """
        a_sequence = self.paged_bytes(prompt_tokens, output_tokens)
        sequences = self.pool_bytes // a_sequence
        state = [
            entry._replace(num_bytes=sequences * entry.num_bytes)
            for entry in self._state_entries(prompt_tokens, output_tokens)
        ]
        found = [*self.weights, *state, *self.workspace]
        if self.missing_bytes:
            over = self.gpu.hbm_bytes - self.weight_bytes - self.workspace_bytes
            return [*found, MemoryEntry(UNUSED, "free (negative: missing)", "", over)]
        used = self.weight_bytes + self.workspace_bytes + sequences * a_sequence
        left = self._limit_bytes - used
        outside = self.gpu.hbm_bytes - self._limit_bytes
        return [
            *found,
            MemoryEntry(UNUSED, "pool too small for one more", "", left),
            MemoryEntry(UNUSED, "outside gpu_memory_utilization", "", outside),
        ]

    def _state_entries(self, prompt_tokens: int, output_tokens: int) -> list[MemoryEntry]:
        """Return one sequence's state by part, and the fragmentation of its blocks."""
        model, context = self.rank.local, prompt_tokens + output_tokens
        windows = {False: Fraction(0), True: Fraction(0)}
        fixed = Fraction(0)
        for state, count in self.rank.states:
            for window in state.windows:
                part = State(windows=(window,)).at(context, output_tokens)
                windows[window.keeps_generated] += count * part
            fixed += count * state.fixed
        recent, kept = (int(part * self.state_share) for part in windows.values())
        fixed *= self.state_share
        paged = self.paged_bytes(prompt_tokens, output_tokens)
        used = min(self.used_bytes(prompt_tokens, output_tokens), paged)
        growing = used - recent - kept - int(fixed)
        wasted = paged - used
        parts = (
            ("growing state (KV)", model.precision.kv, growing),
            ("kept of prompts, and generated", model.precision.kv, kept),
            ("windows of recent tokens", model.precision.kv, recent),
            ("fixed states of sequences", model.precision.state, int(fixed)),
            ("fragmentation in blocks", model.precision.kv, wasted),
        )
        return [MemoryEntry(STATE, what, name, size) for what, name, size in parts if size]

    @cached_property
    def blocks(self) -> KVBlocks:
        """The pool of KV blocks: the granted share, less weights and workspace.

        Raises `ScenarioError`, with the arithmetic, if the model does not fit.
        """
        check_mamba_cache_mode(self.model, self.mamba_cache_mode)
        block_size, block_bytes = self.block
        pages = kv_layout(self.rank, block_size, self.mamba_cache_mode)
        on_device = block_bytes * self.state_share
        beside = block_bytes * self.offload.kv_host if self.offload else Fraction(0)
        fixed_bytes = self.weight_bytes + self.workspace_bytes
        limit_bytes, limit = self.gpu.hbm_bytes, "its memory"
        number = self.num_gpu_blocks
        if number is None:
            limit_bytes = self.granted_bytes
            limit = f"{self.gpu_memory_utilization:g} of its memory"
            number = int((limit_bytes - fixed_bytes) // on_device)
            number = min(number, self._host_blocks(beside) or number)
        num_bytes = math.ceil(number * on_device)
        # The shortest sequence's pages, beside the null block.
        least = 1 if pages == PLAIN else 1 + pages.pages(1, block_size)
        if number < least and fixed_bytes + math.ceil(least * on_device) <= limit_bytes:
            raise ScenarioError(
                f"kv.num_gpu_blocks is {number}: one sequence of {self.model.name} needs "
                f"{least - 1}, and one stays empty; give {least} or more, or leave it out"
            )
        if number < least or fixed_bytes + num_bytes > limit_bytes:
            raise self._too_small(max(number, least), limit_bytes, limit)
        return KVBlocks(
            block_size=block_size,
            block_bytes=block_bytes,
            num_gpu_blocks=number,
            layout=pages,
            num_bytes=num_bytes,
            host_bytes=math.ceil(number * beside),
            free_bytes=self.gpu.hbm_bytes - fixed_bytes - num_bytes,
        )

    @cached_property
    def block(self) -> tuple[int, int]:
        """The tokens and bytes of one block; a hybrid's is as large as its largest fixed state."""
        unit = block_unit(self._target, self.gpu, self.block_size)
        tokens = attention_block_tokens(self._target, unit)
        return tokens, page_bytes(self.rank, tokens, self.mamba_cache_mode)

    def _host_blocks(self, beside: Fraction) -> int | None:
        """Return the blocks, of each of which ``beside`` bytes are in host memory, that it has room
        for; None: no part of them is there, or its size is not known."""
        if self.offload is None or self.offload.host_bytes is None or not beside:
            return None
        room_bytes = self.offload.host_bytes - self.away.host_weight_bytes
        blocks = int(room_bytes // beside)
        if blocks < 1:
            raise ScenarioError(
                f"host memory of {self.offload.host_bytes / _GB:.2f} GB (hardware.host_memory_gb) "
                f"has {room_bytes / _GB:.2f} GB left for keys and values: less than one block"
            )
        return blocks

    def _too_small(self, blocks: int, limit_bytes: int, limit: str) -> ScenarioError:
        """Return an error with the bytes that ``blocks`` would take, and the size that fits."""

        def fits(ranks: int) -> bool:
            other = replace(self, layout=replace(self.layout, tensor_parallel_size=ranks))
            try:
                return other._bytes_with(blocks) <= limit_bytes
            except ScenarioError:
                return False

        smallest = next(filter(fits, valid_sizes(self.model, LARGEST_NODE, self.layout)), None)
        kv_bytes = float(blocks * self.block[1] * self.state_share)
        return ScenarioError(
            f"{self.model.name} does not fit {self.gpu.name} with {sizes_text(self.layout)}: "
            f"{self.weight_bytes / _GB:.2f} GB weights + {self.workspace_bytes / _GB:.2f} GB "
            f"workspace + {kv_bytes / _GB:.3f} GB for {blocks} KV block{'s' * (blocks > 1)} exceed "
            f"{limit_bytes / _GB:.2f} GB ({limit}); the smallest tensor_parallel_size that fits: "
            f"{smallest or 'none'}"
        )

    def _bytes_with(self, blocks: int) -> int:
        kv_bytes = math.ceil(blocks * self.block[1] * self.state_share)
        return self.weight_bytes + self.workspace_bytes + kv_bytes


def _paged(state: State, context: int, generated: int, plan: DevicePlan) -> Fraction:
    """Return the bytes of one layer's state with its tokens rounded up to blocks."""
    if context <= 0:
        return Fraction(0)
    block = plan.block_size
    # A block holds whole entries of a compressed cache.
    block = -(-block // state.entry_tokens) * state.entry_tokens
    found = state.growing * (-(-context // block) * block) + state.fixed
    for window in state.windows:
        if window.keeps_generated:
            kept = min(context - generated, window.tokens) + generated
        else:  # it may begin inside a block
            kept = min(context, (-(-window.tokens // block) + 1) * block)
        found += -(-kept // block) * block * window.bytes_per_token
    return found
