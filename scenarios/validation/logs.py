"""The step logs of a recording as the fitters read them."""

from __future__ import annotations

from collections.abc import Collection

from calibrate.fits.engine_log import StepRows
from calibrate.fits.engine_rows import EngineRows, engine_rows
from scenarios.validation.folder import Recording
from scenarios.validation.system import System


def serving_logs(recording: Recording, system: System) -> list[EngineRows]:
    """Return one log per serving run."""
    return [
        _rows(recording, system, run, {run: steps}) for run, steps in recording.step_runs.items()
    ]


def controlled_logs(
    recording: Recording, system: System, held_out: Collection[str] = ()
) -> list[EngineRows]:
    """Return one log per boot, whose controlled runs share a clock; ``held_out`` runs are not
    fitted."""
    boots: dict[str, dict[str, StepRows]] = {}
    for run, steps in recording.controlled_runs.items():
        boots.setdefault(run.rpartition(":")[0] or "controlled", {})[run] = steps
    return [
        _rows(recording, system, boot, runs, equal_contexts=True, held_out=held_out)
        for boot, runs in boots.items()
    ]


def _rows(
    recording: Recording,
    system: System,
    name: str,
    runs: dict[str, StepRows],
    *,
    equal_contexts: bool = False,
    held_out: Collection[str] = (),
) -> EngineRows:
    return engine_rows(
        f"{recording.key}:{name}",
        runs,
        system.replica.model,
        system.replica.gpu,
        profile=system.replica.profile,
        max_num_seqs=system.replica.max_num_seqs,
        tensor_parallel_size=system.replica.layout.tensor_parallel_size,
        async_scheduling=system.pool.engine.async_scheduling,
        equal_contexts=equal_contexts,
        held_out=held_out,
    )
