"""How one replica is laid out over its GPUs. Fields are named as vLLM names them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from costmodels.hardware.links import StageLink
from costmodels.models.expert_load import ExpertLoad

ContextMode = Literal["all_gather", "ring"]
All2All = Literal["allgather_reducescatter", "deepep_low_latency", "deepep_high_throughput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One replica's ranks. Ranks of one tensor-parallel group are neighbors, then those that share
    prompts, then the stages of a pipeline, then data-parallel ranks, as vLLM numbers them.
    """

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    """Ranks with attention and requests of their own that share the experts."""
    prefill_context_parallel_size: int = 1
    """Ranks that share a prompt's tokens; they compute every decode alike, each on its part of the
    keys and values."""
    prefill_context_parallel_mode: ContextMode = "all_gather"
    """How keys and values come to all of them: before attention, or passed round beside it."""
    decode_context_parallel_size: int = 1
    """Ranks of a tensor-parallel group that split the keys and values of each sequence."""
    enable_expert_parallel: bool = False
    """Experts whole on ranks, instead of a slice of each on every rank."""
    enable_eplb: bool = False
    num_redundant_experts: int = 0
    all2all_backend: All2All = "allgather_reducescatter"
    enable_dbo: bool = False
    """Two half batches, one computing while the other communicates."""
    dbo_decode_token_threshold: int = 32
    dbo_prefill_token_threshold: int = 512
    enable_sp: bool = False
    """Sequence parallelism: reduce-scatter and all-gather in place of each all-reduce."""
    expert_load: ExpertLoad = field(default_factory=ExpertLoad)
    gpus_per_node: int | None = None
    """GPUs of one fabric domain; None: all are."""
    stage_link: StageLink | None = None
    """What joins pipeline stages; None: the GPUs' own fabric and network."""

    @property
    def gpus(self) -> int:
        """Of one replica."""
        return self.stage_gpus * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def stage_gpus(self) -> int:
        """Of one pipeline stage."""
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
        """How many of ``ranks``, each ``stride`` GPUs after the one before, share a domain."""
        if self.gpus_per_node is None:
            return ranks
        return max(1, min(ranks, self.gpus_per_node // stride))
