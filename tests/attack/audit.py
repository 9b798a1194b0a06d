"""What must hold of any run, counted from its tables and from nothing else of the simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.run.result import RunResult
from scenarios.schema import Scenario
from sim.fleet.cluster import RunLog, run_cluster

_ENDS = ("finished", "rejected", "failed", "unfinished")


def audit(result: RunResult) -> list[str]:
    """Return what is wrong with a finished run, in words; nothing if all is well."""
    faults = []
    counts, rows = result.summary["requests"], result.requests
    ended = sum(counts.get(end, 0) for end in (*_ENDS, "abandoned"))
    if counts["arrived"] != ended or counts["arrived"] != len(rows):
        faults.append(f"{counts['arrived']} requests arrived, {ended} ended, {len(rows)} rows")
    done = rows[rows.status == "finished"]
    if not (done.e2e_s >= done.ttft_s).all() or not (done.ttft_s >= 0).all():
        faults.append("an answer ended before its first token, or began before it arrived")
    accounts = [name for name in map(str, rows) if name.endswith("_ns")]
    e2e_ns = done.e2e_s * 1e9  # beyond 104 days, floats hold no single nanoseconds
    off_ns = np.abs(done[accounts].sum(axis=1) - e2e_ns.round())
    if (off_ns > np.where(e2e_ns < 1 << 53, 1.0, e2e_ns * 1e-14)).any():
        faults.append(f"accounts of E2E are {off_ns.max():.0f} ns off")
    if (done.output_tokens < 1).any():
        faults.append("a finished request has no token")
    return faults


def jumps_as_it_steps(scenario: Scenario) -> bool:
    """Return whether stepping gives the request log of jumping, to the nanosecond."""
    jumped, stepped = (_run(scenario, jumps=jumps) for jumps in (True, False))
    return _times(jumped) == _times(stepped)


def _times(log: RunLog) -> tuple[object, ...]:
    requests = log.requests
    columns = (requests.status, requests.first_token_ns, requests.finished_ns)
    return (*map(bytes, columns), bytes(requests.cached_tokens), log.end_ns)


def _run(scenario: Scenario, *, jumps: bool) -> RunLog:
    fleet = build(scenario).fleet
    pools = tuple(
        replace(pool, engine=replace(pool.engine, fast_forward=jumps)) for pool in fleet.pools
    )
    return run_cluster(build_table(scenario), replace(fleet, pools=pools))
