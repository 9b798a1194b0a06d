"""What fills one rank's device, by kind of matrix and of state, for any model of the registry.

Unlike `memory.plan_memory`, which plans the blocks that a simulated engine hands out, this counts
any kind of state, and also shows models that do not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from costmodels.engines.profile import EngineProfile, load_profile
from costmodels.formats import ModelPrecision, load_format
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.draft_layout import draft_weight_bytes
from costmodels.layouts.layout import Layout
from costmodels.layouts.shard import RankShard, shard
from costmodels.memory.buffers import communication_buffers
from costmodels.memory.streaming import ON_DEVICE, Offload, RankOffload, rank_offload
from costmodels.models.drafters import Drafter, with_drafter
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.parts import State
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError

WEIGHTS, STATE, WORKSPACE, UNUSED = "weights", "state", "workspace", "unused"
LINKS = "links"
_CLASSES = (
    ("attention", "attention matrices"),
    ("ffn", "dense FFNs and shared experts"),
    ("experts", "routed experts"),
    ("embedding", "embeddings and LM head"),
    ("others", "norms, biases, routers"),
)


class MemoryEntry(NamedTuple):
    """One line of a device's memory account."""

    group: str
    what: str
    format: str
    """The number format; empty if there is none."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlan:
    """One rank's device: weights and workspace, and the pool that is left for state."""

    rank: RankShard
    """The rank's shard, including a drafter's layers that keep keys and values."""
    gpu: GpuSpec
    weights: tuple[MemoryEntry, ...]
    workspace: tuple[MemoryEntry, ...]
    granted_bytes: int
    """The share of the device that the engine may use, in bytes."""
    block_size: int
    offload: Offload | None = None
    away: RankOffload = ON_DEVICE
    """The rank's weights and state kept off the device."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(entry.num_bytes for entry in self.weights)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of activations or sampler, the runtime, and buffers of exchanges between ranks."""
        return sum(entry.num_bytes for entry in self.workspace)

    @property
    def missing_bytes(self) -> int:
        """Bytes that weights and workspace need beyond the granted share; 0 if they fit."""
        return max(0, self.weight_bytes + self.workspace_bytes - self.granted_bytes)

    @property
    def pool_bytes(self) -> int:
        """Bytes left for the state of sequences, limited by the host memory that holds the rest
        of the state."""
        left = max(0, self.granted_bytes - self.weight_bytes - self.workspace_bytes)
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
        left = self.granted_bytes - used
        outside = self.gpu.hbm_bytes - self.granted_bytes
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


def fill_device(
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    profile: EngineProfile | None = None,
    layout: Layout | None = None,
    offload: Offload | None = None,
    writes_scores: bool = False,
    drafter: Drafter | None = None,
) -> DevicePlan:
    """Account for one rank's device. Raises `ScenarioError` for a layout that does not divide.

    ``drafter`` drafts beside the model; its keys and values share the model's blocks. ``layout``
    replaces ``tensor_parallel_size``; for a pipeline the rank with the most bytes is planned.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise ScenarioError(
            f"gpu_memory_utilization must be above 0 and at most 1, not {gpu_memory_utilization}"
        )
    if block_size < 1:
        raise ScenarioError(f"block_size must be at least 1 token, not {block_size}")
    rank = shard(model, layout or tensor_parallel_size)
    away = rank_offload(rank, offload)
    weights = weight_entries(rank, away)
    if drafter is not None and drafter.draft is not None:
        added = draft_weight_bytes(drafter, rank.layout)
        weights += (MemoryEntry(WEIGHTS, "drafter", drafter.draft.precision.linear, added),)
    return DevicePlan(
        rank=rank if drafter is None else shard(with_drafter(model, drafter), rank.layout),
        gpu=gpu,
        offload=offload,
        away=away,
        weights=weights,
        workspace=workspace_entries(
            rank,
            profile or load_profile(),
            max_num_batched_tokens,
            max_num_seqs,
            writes_scores=writes_scores,
        ),
        granted_bytes=int(gpu.hbm_bytes * gpu_memory_utilization),
        block_size=block_size,
    )


def weight_entries(rank: RankShard, away: RankOffload = ON_DEVICE) -> tuple[MemoryEntry, ...]:
    """Return the weights on one rank by class of matrix; they add up to `RankShard.weight_bytes`.

    For a rank of a pipeline these are the layers' classes in the largest stage's share, and one of
    the two ends. Layer weights that are ``away`` are left out, each class in proportion, and their
    buffer is added.
    """
    gone = away.host_weight_bytes + away.disk_weight_bytes
    resident = Fraction(rank.layer_weight_bytes - gone, rank.layer_weight_bytes)
    params, precision = rank.local.params(), rank.local.precision
    is_pipeline = rank.layout.pipeline_parallel_size > 1
    found = []
    for name, what in _CLASSES:
        count = getattr(params, name)
        if not count:
            continue
        stored = _format_of(precision, name)
        size = load_format(stored).num_bytes(count)
        if name != "embedding":
            size = int(size * rank.stage_share * resident)
        elif is_pipeline and not rank.local.tie_word_embeddings:
            size //= 2
        found.append(MemoryEntry(WEIGHTS, what, stored, size))
    # Entries are whole bytes: the last class takes what rounding leaves.
    rounding = rank.weight_bytes - gone - sum(entry.num_bytes for entry in found)
    if rounding:
        found[-1] = found[-1]._replace(num_bytes=found[-1].num_bytes + rounding)
    if away.buffer_bytes:
        found.append(MemoryEntry(WEIGHTS, "two layers on their way", "", away.buffer_bytes))
    return tuple(found)


def workspace_entries(
    rank: RankShard,
    profile: EngineProfile,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    *,
    writes_scores: bool = False,
) -> tuple[MemoryEntry, ...]:
    """Return the memory peak of the engine's start-up run beyond the weights, the runtime and
    exchange buffers.

    The run pushes the largest step through the layers, then samples ``max_num_seqs`` rows; the two
    peaks do not overlap, so the larger one counts. Experts need their inputs and outputs once for
    every expert chosen. ``writes_scores``: attention without a fused kernel holds a prompt's scores
    of all heads of a layer.
    """
    model = rank.local
    hidden = model.hidden_size
    widest = max(
        *(mixer.row_elements(hidden) for mixer, _ in model.mixers),
        *(ffn.row_elements(hidden) for ffn, _ in model.ffns),
    )
    # Residual, norm output and layer output live beside the widest operator.
    vectors = 3 + (model.residual.kept if model.residual else 0)
    activations = max_num_batched_tokens * (vectors * hidden + widest) * model.dtype_bytes
    if writes_scores:
        heads = max(mixer.heads for mixer, _ in model.mixers if isinstance(mixer, Gqa))
        activations += heads * max_num_batched_tokens**2 * model.dtype_bytes
    scores = " and scores" if writes_scores else ""
    per_logit = (
        profile.moe_sampler_bytes_per_logit
        if model.num_moe_layers
        else profile.dense_sampler_bytes_per_logit
    )
    sampler = max_num_seqs * rank.model.vocab_size * per_logit
    peak = (
        (f"activations{scores} of {max_num_batched_tokens:,} tokens", model.dtype, activations)
        if activations >= sampler
        else (f"sampler of {max_num_seqs:,} rows", "", sampler)
    )
    return (
        MemoryEntry(WORKSPACE, *peak),
        MemoryEntry(WORKSPACE, "runtime, CUDA graphs", "", profile.runtime_bytes),
        *(
            MemoryEntry(LINKS, what, "", num_bytes)
            for what, num_bytes in communication_buffers(rank, max_num_batched_tokens)
        ),
    )


def _format_of(precision: ModelPrecision, name: str) -> str:
    stored: str = precision.dtype if name == "others" else getattr(precision, name)
    return stored


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
