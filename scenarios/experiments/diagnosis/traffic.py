"""Measured requests as a table that can be replayed, and what of them is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrate.results.run import MeasuredRun
from sim.arrays import Float64, Int64
from sim.clock import NS_PER_S
from sim.errors import ScenarioError
from sim.request_table import RequestTable

METRICS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, kw_only=True, eq=False)
class Traffic:
    """The requests of a measured run in order of arrival; NaN where a value is not known."""

    arrival_s: Float64
    """``[n]`` from the first arrival."""
    latencies_s: dict[str, Float64]
    """Metric (``ttft``, ``tpot``, ``e2e``) -> ``[n]``."""
    prompt_tokens: Float64
    output_tokens: Float64
    place: Int64
    """``[n]`` the request's place among the successful ones of the file, from 1."""
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all lengths are known, so that it can be replayed."""
        return bool(np.isfinite(self.prompt_tokens).all() and np.isfinite(self.output_tokens).all())

    def table(self) -> RequestTable:
        """Return the requests for a simulation. Prompts share nothing: the measurement does not
        say."""
        return RequestTable(
            arrival_ns=np.rint(self.arrival_s * NS_PER_S).astype(np.int64),
            prompt_tokens=np.maximum(self.prompt_tokens, 1).astype(np.int64),
            output_tokens=np.maximum(self.output_tokens, 1).astype(np.int64),
            priority=np.zeros(len(self.arrival_s), np.int64),
            source="the measured requests",
        )


def traffic_of(run: MeasuredRun, lengths: RequestTable | None) -> Traffic:
    """Return a run's requests. Lengths that it lacks are those of ``lengths``, repeated in their
    order; None: they stay unknown.

    Answers without a length get what TTFT, TPOT and E2E say together, where they are there. Raises
    `ScenarioError` for a run whose requests have no times.
    """
    if run.arrival_s is None or not np.isfinite(run.arrival_s).any():
        raise ScenarioError(
            f"{run.name}: the requests have no times, so there are no windows; give a file with "
            "arrival_s or send_s (`fleetcast compare` compares whole runs without them)"
        )
    known = np.flatnonzero(np.isfinite(run.arrival_s))
    order = known[np.argsort(run.arrival_s[known], kind="stable")]
    arrival_s = run.arrival_s[order] - run.arrival_s[order[0]]
    latencies = {
        metric: values[order]
        for metric in METRICS
        if (values := getattr(run, f"{metric}_s")) is not None and np.isfinite(values).any()
    }
    notes = list(run.notes)
    if run.completed is not None and len(order) < run.completed:
        notes.append(f"{run.completed - len(order):,} requests without a time are left out")
    prompts, outputs = (
        np.full(len(order), np.nan) if values is None else values[order]
        for values in (run.prompt_tokens, run.output_tokens)
    )
    if set(METRICS) <= set(latencies):
        ttft_s, tpot_s, e2e_s = (latencies[metric] for metric in METRICS)
        with np.errstate(divide="ignore", invalid="ignore"):
            implied = np.rint((e2e_s - ttft_s) / tpot_s) + 1
        lacking = ~np.isfinite(outputs) & np.isfinite(implied)
        if lacking.any():
            outputs = np.where(lacking, implied, outputs)
            notes.append("lengths of answers are (E2E - TTFT)/TPOT + 1")
    for name, values in (("prompt", prompts), ("output", outputs)):
        lacking = ~np.isfinite(values)
        if lacking.any() and lengths is not None and len(lengths):
            assumed: Any = getattr(lengths, f"{name}_tokens")
            values[lacking] = np.resize(assumed, len(values))[lacking]
            notes.append(
                f"{int(lacking.sum()):,} requests have no {name} tokens: those of the scenario's "
                "workload stand for them (assumed)"
            )
    return Traffic(
        arrival_s=arrival_s,
        latencies_s=latencies,
        prompt_tokens=prompts,
        output_tokens=outputs,
        place=order + 1,
        notes=tuple(notes),
    )
