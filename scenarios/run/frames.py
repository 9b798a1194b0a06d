"""The columns of a run as DataFrames, which requests.parquet and steps.parquet hold."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sim.accounts import TIME_ACCOUNTS
from sim.books.ledger import TimeBooks
from sim.books.metrics import RequestMetrics
from sim.fleet.cluster import RunLog
from sim.request import Status
from sim.step_log import StepLog


def requests_frame(log: RunLog, metrics: RequestMetrics, books: TimeBooks) -> pd.DataFrame:
    """Return one row per request of the table; NaN where a time never came."""
    requests, table = log.requests, log.table
    names = np.array([status.name.lower() for status in Status])
    reasons = [requests.reject_reasons.get(i) for i in range(len(table))]
    failures = {}
    if log.fleet.service is not None:
        given_up = [requests.fail_reasons.get(i) for i in range(len(table))]
        failures = {
            "fail_reason": pd.array(given_up, dtype="str"),
            "attempts": [requests.attempts.get(i, 1) for i in range(len(table))],
        }
    frame = pd.DataFrame(
        {
            "request": np.arange(len(table)),
            "replica": np.frombuffer(requests.replica, np.int32),
            "status": names[metrics.status],
            "reject_reason": pd.array(reasons, dtype="str"),
            **failures,
            "arrival_s": metrics.arrival_s,
            "prompt_tokens": table.prompt_tokens,
            "output_tokens": table.output_tokens,
            "cached_tokens": np.frombuffer(requests.cached_tokens, np.int64),
            "preemptions": np.frombuffer(requests.preemptions, np.int32),
            "queue_s": metrics.queue_s,
            "ttft_s": metrics.ttft_s,
            "tpot_s": metrics.tpot_s,
            "e2e_s": metrics.e2e_s,
            "good": metrics.good,
            "measured": metrics.measured,
        }
    )
    if log.tiers:
        frame["loaded_tokens"] = 0
        for index, by_tier in requests.tier_tokens.items():
            frame.loc[index, "loaded_tokens"] = sum(n for tier, n in by_tier.items() if tier)
    if table.class_index is not None:
        frame["class"] = np.array(table.class_names)[table.class_index]
    accounts = {
        f"{account}_ns": books.e2e_ns[:, column] for column, account in enumerate(TIME_ACCOUNTS)
    }
    return pd.concat([frame, pd.DataFrame(accounts)], axis=1)


def steps_frame(log: RunLog) -> pd.DataFrame:
    """Return one row per run of equal steps, with the shape and state of its first step."""
    frames = [_replica_frame(replica, steps) for replica, steps in enumerate(log.steps)]
    return pd.concat(frames, ignore_index=True)


def step_times_frame(log: RunLog) -> pd.DataFrame:
    """Return when each step's outputs became visible, one row per step: the times of all tokens."""
    frames = [
        pd.DataFrame({"replica": replica, "visible_ns": steps.step_visible_ns()})
        for replica, steps in enumerate(log.steps)
    ]
    return pd.concat(frames, ignore_index=True)


def preemptions_frame(log: RunLog) -> pd.DataFrame:
    """Return one row per preemption, from the loss of the blocks until the tokens are restored.

    Tokens are restored by computing them again or by swapping them in from the host.
    """
    swapped = [(request, start, stop - 1) for request, start, stop in log.requests.swapped]
    requests = np.array([*log.requests.recomputes, *swapped], np.int64).reshape(-1, 3)
    replica = np.frombuffer(log.requests.replica, np.int32)[requests[:, 0]]
    start_s, end_s = np.empty(len(requests)), np.empty(len(requests))
    for index, steps in enumerate(log.steps):
        chosen = replica == index
        start_s[chosen] = steps.column("plan_ns")[requests[chosen, 1]] / 1e9
        end_s[chosen] = steps.column("gpu_end_ns")[requests[chosen, 2]] / 1e9
    return pd.DataFrame(
        {"request": requests[:, 0], "replica": replica, "start_s": start_s, "end_s": end_s}
    )


def _replica_frame(replica: int, steps: StepLog) -> pd.DataFrame:
    columns = steps.columns()
    seconds = {f"{name}_s": columns[f"{name}_ns"] / 1e9 for name in ("plan", "gpu_end", "gpu")}
    state = ("running", "waiting", "free_blocks", "preempted")
    return pd.DataFrame(
        {
            "replica": np.full(len(steps), replica, np.int64),
            "plan_s": seconds["plan_s"],
            "gpu_end_s": seconds["gpu_end_s"],
            "steps": columns["steps"],
            "gpu_s": seconds["gpu_s"],
            **{name: columns[name] for name in (*steps.shape_names, *state)},
        }
    )
