"""Step logs as the fitters need them: one clock a boot, shapes as columns, launch classes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from calibrate.engine_log import StepRows
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.shard import RankShard, shard
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError

Float = NDArray[np.float64]
LaunchClass = Literal["graph", "piecewise", "eager"]
CLASSES: tuple[LaunchClass, ...] = ("graph", "piecewise", "eager")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRows:
    """Consecutive steps of one engine process; arrays are ``[n]``, times in seconds."""

    name: str
    gpu: GpuSpec
    shard: RankShard
    graph_sizes: tuple[int, ...]
    async_scheduling: bool
    equal_contexts: bool
    """Sequences as long as each other (a benchmark's grid)."""
    sched_s: Float
    launch_from_s: Float
    """The scheduler has returned: the host prepares and launches from here."""
    out_s: Float
    applied_s: Float
    running: Float
    columns: dict[str, Float]
    """One per field of `StepShape`."""
    launch_class: NDArray[np.int8]
    """Index into `CLASSES`."""
    point: NDArray[np.str_]
    """The run (of a benchmark: the point) each step belongs to."""
    is_fitted: NDArray[np.bool_]
    """False for steps that are there for the clock alone and kept to judge the fit."""

    def __len__(self) -> int:
        return len(self.sched_s)

    @property
    def model(self) -> ModelSpec:
        """What was served."""
        return self.shard.model

    @property
    def num_seqs(self) -> Float:
        """Sequences in each step."""
        seqs: Float = self.columns["decode_seqs"] + self.columns["prefill_seqs"]
        return seqs


def engine_rows(
    name: str,
    runs: dict[str, StepRows],
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    profile: EngineProfile,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    async_scheduling: bool = True,
    equal_contexts: bool = False,
    held_out: Collection[str] = (),
) -> EngineRows:
    """Join runs that share a clock, in order of time. A prompt's last chunk is taken to sample.

    ``held_out`` names runs that no fit may look at. Raises `ScenarioError` for a model whose layers
    clip contexts: recorded steps have sums of whole ones.
    """
    if model.clips:
        clips = ", ".join(map(str, model.clips))
        raise ScenarioError(
            f"{model.name}: its layers clip contexts to {clips} tokens, and recorded steps have "
            "sums of whole contexts alone: its steps cannot be priced from them"
        )
    order = sorted(runs, key=lambda run: float(runs[run].t_sched[0]))

    def joined(column: str) -> Float:
        return np.concatenate([getattr(runs[run], column) for run in order]).astype(np.float64)

    decodes, prefills = joined("decode_seqs"), joined("prefill_reqs")
    columns = {
        "decode_seqs": decodes,
        "decode_context_tokens": joined("ctx_decode_sum"),
        "prefill_seqs": prefills,
        "prefill_tokens": joined("prefill_tokens"),
        "prefill_context_tokens": joined("ctx_prefill_start_sum"),
        "prefill_pairs": joined("attn_pairs_prefill"),
        "logits": decodes + prefills,
    }
    graph_sizes = profile.graphs_for(max_num_seqs)
    in_graph = decodes + columns["prefill_tokens"] <= (graph_sizes[-1] if graph_sizes else 0)
    launch_class = np.where(in_graph, np.where(columns["prefill_tokens"] > 0, 1, 0), 2)
    return EngineRows(
        name=name,
        gpu=gpu,
        shard=shard(model, tensor_parallel_size),
        graph_sizes=graph_sizes,
        async_scheduling=async_scheduling,
        equal_contexts=equal_contexts,
        sched_s=joined("t_sched"),
        launch_from_s=joined("t_sched_end"),
        out_s=joined("t_out"),
        applied_s=joined("t_upd_end"),
        running=joined("running"),
        columns=columns,
        launch_class=launch_class.astype(np.int8),
        point=np.concatenate([np.full(len(runs[run]), run) for run in order]),
        is_fitted=np.concatenate([np.full(len(runs[run]), run not in held_out) for run in order]),
    )
