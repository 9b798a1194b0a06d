"""Shares of requests that met their targets, for a run and for each class of requests in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.build.workload.classes import class_slos
from scenarios.run.figures import request_latencies, share
from scenarios.schema import Scenario
from sim.books.metrics import RequestMetrics
from sim.fleet.cluster import RunLog


def slo_facts(metrics: RequestMetrics, chosen: NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Return attainment, goodput and the share that met each target, over measured requests.

    ``chosen`` ``[n]`` limits the count to those requests.
    """
    measured = metrics.measured if chosen is None else metrics.measured & chosen
    arrived, window = int(measured.sum()), metrics.window.length_s
    num_good = float((metrics.good & measured).sum())
    return {
        "attainment": share(num_good, arrived),
        "goodput_per_s": num_good / window if window else None,
        "by_target": {
            name: share((met & measured).sum(), arrived) for name, met in metrics.met.items()
        },
    }


def class_facts(scenario: Scenario, log: RunLog, metrics: RequestMetrics) -> list[dict[str, Any]]:
    """Return one entry per class of requests, in the scenario's order; empty if there are no
    classes."""
    table = log.table
    if table.class_index is None:
        return []
    facts = []
    slos = class_slos(scenario)
    if not scenario.workload.classes:  # classes of the trace itself, with the same targets
        slos = slos * len(table.class_names)
    for index, (name, slo) in enumerate(zip(table.class_names, slos, strict=True)):
        chosen = table.class_index == index
        of_class = slo_facts(metrics, chosen)
        targets = slo.targets
        of_class["by_target"] = {n: v for n, v in of_class["by_target"].items() if n in targets}
        facts.append(
            {
                "name": name,
                "arrived": int((metrics.measured & chosen).sum()),
                "finished": int((metrics.counted & chosen).sum()),
                "targets": {f"{metric}_s": target_s for metric, target_s in targets.items()},
                **of_class,
                "figures": request_latencies(metrics, chosen),
            }
        )
    return facts
