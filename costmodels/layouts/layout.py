"""How one replica is laid out over its GPUs, with vLLM's names, and which layouts a model cannot
have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from costmodels.hardware.links import StageLink
from costmodels.models.expert_load import ExpertLoad
from costmodels.models.layers.gqa import Gqa
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError

ContextMode = Literal["all_gather", "ring"]
All2All = Literal["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One replica's ranks, numbered as in vLLM.

    Ranks of one tensor-parallel group are neighbors, then those that share prompts, then the stages
    of a pipeline, then data-parallel ranks.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Ranks with attention and requests of their own that share the experts."""
    prefill_context_parallel_size: int = 1
    """Ranks that share a prompt's tokens; all compute every decode, each on its part of the keys
    and values."""
    prefill_context_parallel_mode: ContextMode = "all_gather"
    """How keys and values come to all of these ranks: before attention, or passed round during
    it."""
    decode_context_parallel_size: int = 1
    """Ranks of a tensor-parallel group that split the keys and values of each sequence."""
    enable_expert_parallel: bool = False
    """Whether experts are whole on ranks, instead of a slice of each on every rank."""
    enable_eplb: bool = False
    num_redundant_experts: int = 0
    all2all_backend: All2All = "allgather_reducescatter"
    enable_dbo: bool = False
    """Whether the batch is halved, with one half computing while the other communicates."""
    dbo_decode_token_threshold: int = 32
    dbo_prefill_token_threshold: int = 512
    enable_sp: bool = False
    """Sequence parallelism: reduce-scatter and all-gather instead of each all-reduce."""
    expert_load: ExpertLoad = field(default_factory=ExpertLoad)
    gpus_per_node: int | None = None
    """GPUs per fabric domain; None: all are in one."""
    stage_link: StageLink | None = None
    """Link that joins pipeline stages; None: the GPUs' own fabric and network."""

    @property
    def gpus(self) -> int:
        """Number of GPUs of one replica."""
        return self.stage_gpus * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def stage_gpus(self) -> int:
        """Number of GPUs of one pipeline stage."""
        return self.tensor_parallel_size * self.prefill_context_parallel_size

    @property
    def context_ranks(self) -> int:
        """Ranks that each hold a part of a sequence's keys and values."""
        return self.prefill_context_parallel_size * self.decode_context_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Ranks that share the experts of one layer."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def splits_tokens(self) -> bool:
        """Whether each rank of a tensor-parallel group takes its part of the tokens to experts."""
        return self.enable_expert_parallel and self.data_parallel_size > 1

    @property
    def stage_hops(self) -> int:
        """Hops that a micro-batch takes from stage to stage in one step."""
        between = self.pipeline_parallel_size - 1
        return between + (self.stage_link.client_hops if self.stage_link and between else 0)

    def in_node(self, ranks: int, stride: int = 1) -> int:
        """Return the number of ``ranks``, each ``stride`` GPUs after the one before, that share
        a domain."""
        if self.gpus_per_node is None:
            return ranks
        return max(1, min(ranks, self.gpus_per_node // stride))


def check_layout(model: ModelSpec, layout: Layout) -> None:
    """Raise `ScenarioError`, with an alternative, if ``model`` cannot be laid out in this way.

    Heads and widths are checked where they are split: `costmodels.layouts.shard.shard`.
    """
    problem = _problem(model, layout)
    if problem:
        raise ScenarioError(f"{model.name}: {problem}")


def _problem(model: ModelSpec, layout: Layout) -> str:
    stages, ranks = layout.pipeline_parallel_size, layout.expert_ranks
    if min(layout.tensor_parallel_size, stages, layout.data_parallel_size) < 1:
        return "sizes of parallelism must be at least 1"
    if stages > model.num_layers:
        return f"pipeline_parallel_size {stages} is more than its {model.num_layers} layers"
    if stages > 1 and any(group.skips_prompt for group in model.layers):
        return "pipeline_parallel_size must be 1: its prompts leave before the last layers"
    problem = _context_problem(model, layout)
    if problem:
        return problem
    if layout.stage_link and stages == 1:
        return "hardware.stage_link joins pipeline stages: set engine.pipeline_parallel_size"
    if not model.num_experts:
        return _without_experts(layout)
    if layout.expert_load.loads and len(layout.expert_load.loads) != model.num_experts:
        return f"{len(layout.expert_load.loads)} expert_loads for its {model.num_experts} experts"
    problem = _overlap_problem(layout)
    if problem or not layout.enable_expert_parallel:
        return problem or _without_placement(layout)
    experts = model.num_experts + layout.num_redundant_experts
    if ranks > experts:
        return f"{ranks} ranks are more than its {experts} experts"
    if layout.num_redundant_experts and not layout.enable_eplb:
        return "num_redundant_experts needs enable_eplb"
    if layout.enable_eplb and experts % ranks:
        more = -(-experts // ranks) * ranks - model.num_experts
        return (
            f"enable_eplb needs equally many experts on each of {ranks} ranks, which "
            f"{model.num_experts} + {layout.num_redundant_experts} redundant are not; "
            f"num_redundant_experts {more} would do"
        )
    return ""


def _context_problem(model: ModelSpec, layout: Layout) -> str:
    """Return what violates vLLM's `verify_with_parallel_config`, or is not priced; empty if
    nothing does."""
    prompts, decodes = layout.prefill_context_parallel_size, layout.decode_context_parallel_size
    if min(prompts, decodes) < 1:
        return "sizes of context parallelism must be at least 1"
    if prompts == decodes == 1:
        return ""
    kinds = {mixer.kind for mixer, _ in model.mixers} - {"gqa", "mla"}
    if kinds or any(state.windows for state, _ in model.states):
        return (
            "context parallelism needs attention over whole contexts in every layer; it has "
            f"{', '.join(sorted(kinds)) or 'windows of newest tokens in another format'}"
        )
    ranks = layout.tensor_parallel_size
    if ranks % decodes:
        return (
            f"decode_context_parallel_size {decodes} must divide tensor_parallel_size {ranks}: it "
            "splits contexts over ranks of that group"
        )
    if prompts > 1 and (layout.data_parallel_size > 1 or layout.enable_expert_parallel):
        return (
            "prefill_context_parallel_size above 1 is not priced with data_parallel_size or "
            "enable_expert_parallel"
        )
    for mixer, _ in model.mixers if decodes > 1 else ():
        if isinstance(mixer, Gqa) and (
            ranks // mixer.kv_heads < decodes or mixer.heads // mixer.kv_heads % decodes
        ):
            return (
                f"decode_context_parallel_size {decodes} needs as many ranks with one KV head, "
                f"and a multiple of it of query heads to each: tensor_parallel_size {ranks} has "
                f"{ranks // mixer.kv_heads} for each of its {mixer.kv_heads} KV heads, of "
                f"{mixer.heads // mixer.kv_heads} query heads"
            )
    return ""


def _without_experts(layout: Layout) -> str:
    if layout.data_parallel_size > 1:
        return (
            "data_parallel_size must be 1: it has no experts for ranks to share; whole engines "
            "side by side are pool.replicas"
        )
    if layout.enable_expert_parallel or layout.enable_dbo:
        return "it has no experts: enable_expert_parallel and enable_dbo must be off"
    return ""


def _without_placement(layout: Layout) -> str:
    if layout.enable_eplb or layout.num_redundant_experts:
        return "enable_eplb and num_redundant_experts need enable_expert_parallel"
    if layout.all2all_backend != "allgather_reducescatter":
        return f"all2all_backend {layout.all2all_backend} needs enable_expert_parallel"
    return ""


def _overlap_problem(layout: Layout) -> str:
    if not layout.enable_dbo:
        return ""
    deepep = layout.all2all_backend.startswith("deepep")
    if layout.data_parallel_size == 1 or not layout.enable_expert_parallel or not deepep:
        return (
            "enable_dbo overlaps the all-to-all of experts: it needs data_parallel_size above 1, "
            "enable_expert_parallel, and an all2all_backend of deepep"
        )
    if layout.pipeline_parallel_size > 1:
        return "enable_dbo is not priced with pipeline stages"
    return ""
