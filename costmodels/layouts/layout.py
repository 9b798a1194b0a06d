"""How one replica is laid out over its GPUs. Fields have vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from costmodels.hardware.links import StageLink
from costmodels.models.expert_load import ExpertLoad

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
