"""Predict the seconds of the loop's steps with fleetcast's step cost, from measured operators
alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from calibrate.tables.kernel_lines import read_lines
from calibrate.tables.kernel_tables import build_tables, target_of, write_tables
from costmodels.engines.profile import EngineProfile, load_profile, scale_host
from costmodels.hardware.efficiency import load_efficiency
from costmodels.operators.sources import load_operators
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.steps.cost import StepCost
from costmodels.steps.describe import step_seconds
from sim.errors import ScenarioError
from sim.evidence import Evidence
from tests.bench.cpu_loop.shape import GROUPS, LoopModel, LoopStep

# Operators of a step by name; all others are matrices.
_GROUPS = {
    "embedding": "elementwise",
    "norms": "elementwise",
    "rope_and_kv_write": "elementwise",
    "activation": "elementwise",
    "sampling": "sampling",
    "attention": "attention",
    "decode_attention": "attention",
    "prefill_attention": "attention",
}


def loop_step_cost(
    model: LoopModel, lines: Sequence[Path], folder: Path, host_s: float, steps: Sequence[LoopStep]
) -> StepCost:
    """Import the lines into tables in ``folder`` and compile the model's step cost from them.

    ``host_s``: what a step takes beside its kernels, which on a processor run in their call.
    Raises `ScenarioError` where the tables do not serve every operator of the model.
    """
    read = read_lines(lines)
    gpu = target_of(read, None)
    write_tables(build_tables(read, gpu), folder)
    spec = model.spec()
    sources = load_operators(str(folder), gpu, spec, load_efficiency(gpu))
    if sources.notes:
        raise ScenarioError(f"not all operators are measured: {'; '.join(sources.notes)}")
    return compile_step_cost(
        spec,
        gpu,
        StepOptions(
            max_num_batched_tokens=max(step.tokens for step in steps),
            max_num_seqs=max(step.logits for step in steps),
            profile=_host(host_s),
            operators=sources,
            equal_contexts=True,
        ),
    )


def predicted_s(cost: StepCost, step: LoopStep) -> float:
    """Seconds from one step to the next."""
    return step_seconds(cost, step.shape(), async_scheduling=False)


def predicted_operator_s(cost: StepCost, step: LoopStep) -> dict[str, float]:
    """Return the seconds that kernels take of a step, by kind of operator: `GROUPS`."""
    found = dict.fromkeys(GROUPS, 0.0)
    for row in cost.describe(step.shape()):
        found[_GROUPS.get(row.name, "matrices")] += row.seconds
    return found


def _host(host_s: float) -> EngineProfile:
    """An engine without graphs that does nothing but run the model: all host time is one term."""
    known = Evidence(label="measured", source="the loop without its kernels, in the same run")
    return replace(
        scale_host(load_profile(), 0.0),
        driver_s=host_s,
        between_passes_s=0.0,
        name="cpu-loop",
        engine="torch",
        graph_sizes=(),
        host_evidence=known,
        graph_evidence=known,
        kernel_evidence=known,
    )
