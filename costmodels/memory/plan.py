"""Device memory of one rank: weights, workspace, KV cache and what is left, in exact bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from costmodels.engines.profile import EngineProfile, load_profile
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import LARGEST_NODE, RankShard, shard, sizes_text, valid_sizes
from costmodels.memory.buffers import communication_buffers
from costmodels.memory.device import workspace_entries
from costmodels.memory.paging import (
    MambaCacheMode,
    attention_block_tokens,
    block_unit,
    check_mamba_cache_mode,
    kv_layout,
    page_bytes,
)
from costmodels.memory.streaming import Offload, RankOffload, rank_offload
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError
from sim.kv.layout import PLAIN, KVLayout

_GB = 1e9
# Lengths sampled for a mean over a block.
_LENGTHS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """The parts of one rank's device memory. The four parts add up to ``device_bytes``."""

    device_bytes: int
    weight_bytes: int
    workspace_bytes: int
    """Activations of the largest step, the sampler, runtime libraries and graphs, and
    ``communication_bytes``: buffers of exchanges between ranks."""
    communication_bytes: int
    kv_cache_bytes: int
    free_bytes: int
    """Bytes not used: outside ``gpu_memory_utilization``, or less than a block."""
    block_size: int
    """Tokens per block: more than asked for if a recurrent state must fit one."""
    block_bytes: int
    """Bytes per page: a block of all layers whose state grows
    (`costmodels.memory.paging.page_bytes`)."""
    num_gpu_blocks: int
    """Number of pages in the pool."""
    layout: KVLayout
    """Number of pages that a sequence holds."""
    draft_weight_bytes: int = 0
    """The drafter's part of ``weight_bytes``."""
    host_weight_bytes: int = 0
    """Bytes off the device: weights in host memory, and in the next fields weights on disk, and
    keys and values in host memory."""
    disk_weight_bytes: int = 0
    host_kv_bytes: int = 0

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
        return max(0, waste * self.kv_cache_bytes // whole)


def plan_memory(
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    num_gpu_blocks: int | None = None,
    profile: EngineProfile | None = None,
    layout: Layout | None = None,
    offload: Offload | None = None,
    writes_scores: bool = False,
    mamba_cache_mode: MambaCacheMode = "none",
    draft_weight_bytes: int = 0,
    kept: ModelSpec | None = None,
) -> DeviceMemory:
    """Plan one rank's memory as the engine does: the granted share, less weights and workspace.

    ``num_gpu_blocks`` overrides the number of KV blocks; it may then use memory beyond the
    utilization, but not beyond the device. With a ``mamba_cache_mode`` other than none, recurrent
    states are cached with prefixes. ``layout`` replaces ``tensor_parallel_size``; for a pipeline
    the rank with the most bytes is planned. What ``offload`` keeps elsewhere is not on the device,
    except for the layers in transfer. ``draft_weight_bytes`` are a drafter's on a rank, ``kept`` is
    the model with the layers that keep keys and values for it; None: the model's own.
    ``writes_scores``: attention keeps the scores of a whole prompt in memory. Raises
    `ScenarioError`, with the arithmetic, if a number is out of range or the model does not fit.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise ScenarioError(
            f"gpu_memory_utilization must be above 0 and at most 1, not {gpu_memory_utilization}"
        )
    if block_size < 1:
        raise ScenarioError(f"block_size must be at least 1 token, not {block_size}")
    if num_gpu_blocks is not None and num_gpu_blocks < 1:
        raise ScenarioError(f"num_gpu_blocks must be at least 1, not {num_gpu_blocks}")
    profile = profile or load_profile()
    parallel = layout or Layout(tensor_parallel_size=tensor_parallel_size)
    rank = shard(model, parallel)
    limits = max_num_batched_tokens, max_num_seqs, writes_scores
    workspace_bytes = _workspace_bytes(rank, profile, *limits)
    away = rank_offload(rank, offload)
    weight_bytes = rank.weight_bytes - away.freed_bytes + draft_weight_bytes
    check_mamba_cache_mode(model, mamba_cache_mode)
    unit = block_unit(rank, gpu, block_size)
    block_size = attention_block_tokens(rank, unit)
    paged = rank if kept is None else shard(kept, parallel)
    block_bytes = page_bytes(paged, block_size, mamba_cache_mode)
    pages = kv_layout(paged, block_size, mamba_cache_mode)
    on_device = block_bytes * away.kv_device_share
    host_block_bytes = block_bytes * offload.kv_host if offload else Fraction(0)
    granted_bytes = int(gpu.hbm_bytes * gpu_memory_utilization)
    if num_gpu_blocks is None:
        num_gpu_blocks = int((granted_bytes - weight_bytes - workspace_bytes) // on_device)
        host_blocks = _host_blocks(offload, away, host_block_bytes)
        num_gpu_blocks = min(num_gpu_blocks, host_blocks or num_gpu_blocks)
        limit_bytes, limit = granted_bytes, f"{gpu_memory_utilization:g} of its memory"
    else:
        limit_bytes, limit = gpu.hbm_bytes, "its memory"
    kv_cache_bytes = math.ceil(num_gpu_blocks * on_device)
    used_bytes = weight_bytes + workspace_bytes + kv_cache_bytes
    # The shortest sequence's pages, beside the null block.
    least_blocks = 1 if pages == PLAIN else 1 + pages.pages(1, block_size)
    if num_gpu_blocks < least_blocks or used_bytes > limit_bytes:
        blocks = max(num_gpu_blocks, least_blocks)

        def fits(ranks: int) -> bool:
            size = replace(parallel, tensor_parallel_size=ranks)
            other, other_paged = shard(model, size), shard(kept or model, size)
            tokens = attention_block_tokens(other, unit)
            other_page = page_bytes(other_paged, tokens, mamba_cache_mode)
            try:
                gone = rank_offload(other, offload)
            except ScenarioError:
                return False
            other_bytes = other.weight_bytes - gone.freed_bytes + draft_weight_bytes
            other_bytes += math.ceil(blocks * other_page * gone.kv_device_share)
            other_bytes += _workspace_bytes(other, profile, *limits)
            return other_bytes <= limit_bytes

        smallest = next(filter(fits, valid_sizes(model, LARGEST_NODE, parallel)), None)
        kv_text = f"{float(blocks * on_device) / _GB:.3f} GB for {blocks} KV block"
        raise ScenarioError(
            f"{model.name} does not fit {gpu.name} with {sizes_text(parallel)}: "
            f"{weight_bytes / _GB:.2f} GB weights + {workspace_bytes / _GB:.2f} GB workspace + "
            f"{kv_text}{'s' * (blocks > 1)} exceed {limit_bytes / _GB:.2f} GB ({limit}); "
            f"the smallest tensor_parallel_size that fits: {smallest or 'none'}"
        )
    return DeviceMemory(
        device_bytes=gpu.hbm_bytes,
        weight_bytes=weight_bytes,
        draft_weight_bytes=draft_weight_bytes,
        workspace_bytes=workspace_bytes,
        communication_bytes=sum(
            buffer.num_bytes for buffer in communication_buffers(rank, max_num_batched_tokens)
        ),
        kv_cache_bytes=kv_cache_bytes,
        free_bytes=gpu.hbm_bytes - used_bytes,
        block_size=block_size,
        block_bytes=block_bytes,
        num_gpu_blocks=num_gpu_blocks,
        layout=pages,
        host_weight_bytes=away.host_weight_bytes,
        disk_weight_bytes=away.disk_weight_bytes,
        host_kv_bytes=math.ceil(num_gpu_blocks * host_block_bytes),
    )


def _host_blocks(
    offload: Offload | None, away: RankOffload, host_block_bytes: Fraction
) -> int | None:
    """Return the blocks that host memory has room for; None: no part of them is there, or its
    size is not known."""
    if offload is None or offload.host_bytes is None or not host_block_bytes:
        return None
    room_bytes = offload.host_bytes - away.host_weight_bytes
    blocks = int(room_bytes // host_block_bytes)
    if blocks < 1:
        raise ScenarioError(
            f"host memory of {offload.host_bytes / _GB:.2f} GB (hardware.host_memory_gb) has "
            f"{room_bytes / _GB:.2f} GB left for keys and values: less than one block"
        )
    return blocks


def _workspace_bytes(
    rank: RankShard,
    profile: EngineProfile,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    writes_scores: bool,
) -> int:
    entries = workspace_entries(
        rank, profile, max_num_batched_tokens, max_num_seqs, writes_scores=writes_scores
    )
    return sum(entry.num_bytes for entry in entries)
