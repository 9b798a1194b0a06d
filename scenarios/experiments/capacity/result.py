"""capacity.json: the answer, the curve, what binds, and the evidence, as JSON values."""

from __future__ import annotations

from typing import Any

from reports.schemas import CAPACITY
from scenarios.build.layout import replica_gpus
from scenarios.build.workload.classes import class_slos
from scenarios.experiments.capacity.binding import binding
from scenarios.experiments.capacity.measure import Row, curve, nearest
from scenarios.experiments.capacity.model_error import ModelError
from scenarios.experiments.capacity.question import Question
from scenarios.experiments.capacity.runs import Pilot, Runs
from scenarios.experiments.capacity.search import Found
from scenarios.run.warnings import CLOSE_TO_SATURATION
from scenarios.schema import Scenario
from sim import __version__
from sim.books.metrics import TARGETS
from sim.evidence import LABELS, weakest_share

_LABEL_SHARE = 0.05  # share of the time from which on a label counts
_METHOD = (
    "Attainment is pooled over replications that see the same requests at every load; between the "
    "loads near the answer the logit of the share of misses is linear in the logarithm of the "
    "load, and the capacity is where it crosses the target. The interval is the 95% t interval "
    "over the jackknife's pseudo-values, one a {unit}."
)
_METHOD_STABLE = (
    "The capacity is the rate at which requests leave an overloaded system. The interval is the "
    "95% t interval over replications."
)


def content(
    scenario: Scenario,
    *,
    question: Question,
    pilot: Pilot,
    runs: Runs,
    found: Found,
    earlier: list[Row],
    error: ModelError | None,
    needs: dict[str, Any] | None,
    wall_s: float,
) -> dict[str, Any]:
    """Return everything that a reader of the answer needs.

    ``earlier`` holds rows of a first search with shorter runs; only those below all other loads are
    kept.
    """
    rows = _joined(earlier, curve(found.samples, runs))
    answer = _answer(scenario, question, runs, found, error, rows)
    at = found.near[-1] if found.capacity is None else found.capacity.level
    targets = _targets(scenario)
    by_queue = found.limit == "stability"
    row = nearest(rows, at, stable=by_queue)
    value: dict[str, Any] = {
        "schema": CAPACITY,
        "fleetcast_version": __version__,
        "question": {
            "vary": runs.plan.variable.field,
            "unit": runs.plan.variable.unit,
            "attainment": None if question.stable else question.attainment,
            "precision": question.precision,
            "targets": targets,
            **({"itl_of": scenario.slo.itl_of} if "itl" in targets else {}),
        },
        "answer": answer,
        "binding": binding(rows, at, targets, by_queue=by_queue),
        "curve": rows,
        "wanted": needs,
        "conditions": _conditions(scenario, pilot, runs, found),
        "evidence": {k: row["evidence"][k] for k in LABELS if k in row["evidence"]},
        "label": _label(row),
        "sources": pilot.summary["sources"],
        "method": _method(question, found, runs),
        "run": {
            "simulations": sum(row["replications"] for row in rows),
            "requests": sum(row["requests"] for row in rows),
            "wall_s": wall_s,
        },
    }
    value["warnings"] = _warnings(value, found, runs)
    return value


def _joined(earlier: list[Row], rows: list[Row]) -> list[Row]:
    # The longer search has no rows below its lowest load, and overload looks better in short runs.
    return [row for row in earlier if row["level"] < rows[0]["level"]] + rows


def _answer(
    scenario: Scenario,
    question: Question,
    runs: Runs,
    found: Found,
    error: ModelError | None,
    rows: list[Row],
) -> dict[str, Any]:
    ranks, replicas = replica_gpus(scenario), scenario.pool.replicas
    saturation = None if runs.plan.variable.closed_loop else _saturation(rows, found)
    answer: dict[str, Any] = {
        "limit": found.limit,
        "capacity": None,
        "interval": None,
        "precision": None,
        "replications": found.replications,
        "fixed": runs.plan.fixed,
        "replicas": replicas,
        "gpus": replicas * ranks,
        "per_gpu": None,
        "model_error": None,
        "saturation_per_s": saturation,
        "of_saturation": None,
        "at_least": max(found.samples.levels) if found.limit == "none found" else None,
        "lightest": found.samples.levels[0],
    }
    if found.capacity is None:
        return answer
    level = found.capacity.level
    answer |= {
        "capacity": level,
        "interval": [found.capacity.low, found.capacity.high],
        "precision": found.capacity.precision,
        "per_gpu": level / (replicas * ranks),
        "of_saturation": level / saturation if saturation else None,
    }
    if error is not None:
        half = error.half_width
        answer["model_error"] = {
            "interval": [level * max(1 - half, 0.0), level * (1 + half)],
            "half_width": half,
            "gpu": {"slower": error.gpu_error, "change": error.gpu},
            "host": {"slower": error.host_error, "change": error.host},
        }
    return answer


def _saturation(rows: list[Row], found: Found) -> float | None:
    level = found.near[-1] if found.capacity is None else found.capacity.level
    value: float | None = nearest(rows, level)["saturation_per_s"]
    return value


def _targets(scenario: Scenario) -> dict[str, float]:
    """Return metric -> the tightest target that any class has for it."""
    every = [slo.targets for slo in class_slos(scenario)]
    names = [name for name in TARGETS if any(name in of for of in every)]
    return {name: min(of[name] for of in every if name in of) for name in names}


def _conditions(scenario: Scenario, pilot: Pilot, runs: Runs, found: Found) -> dict[str, Any]:
    plan, last = runs.plan, scenario.seed + found.replications - 1
    conditions = dict(pilot.summary["conditions"])
    requests = max(one.requests for one in runs.facts.values())
    skipped = plan.counting(found.near[0]).skip
    length = f"{requests:,} requests counted in each run"
    if plan.skips:
        length += f", after {skipped:,} that fill the system"
    conditions |= {
        "workload": pilot.source,
        "runs": length,
        "seed": f"{scenario.seed} to {last}" if last > scenario.seed else str(scenario.seed),
        "notes": list(pilot.notes),
    }
    for name in ("horizon_s", "replications"):
        conditions.pop(name, None)
    return conditions


def _label(row: Row) -> str | None:
    """Return the weakest evidence that carries at least a twentieth of the time at the answer."""
    shares = row["evidence"]
    return weakest_share(shares)


def _method(question: Question, found: Found, runs: Runs) -> str:
    if question.stable or found.limit == "stability":
        return _METHOD_STABLE
    unit = "replication" if runs.plan.units == 1 else "stretch of a replication"
    if runs.plan.fixed:
        unit = "tenth of the trace"
    return _METHOD.format(unit=unit)


def _warnings(value: dict[str, Any], found: Found, runs: Runs) -> list[dict[str, str]]:
    answer, question = value["answer"], value["question"]
    warnings = []
    precision = answer["precision"]
    if precision is not None and precision > 1.05 * question["precision"]:
        text = (
            f"the interval is ±{precision:.1%}, not the ±{question['precision']:.1%} asked for, "
            f"after {found.replications} replications"
        )
        if runs.plan.fixed:
            text = (
                "one trace has no replications: the interval is what its tenths make likely for "
                "another like it, and the capacity for this one is as exact as the model"
            )
        warnings.append(_warning("imprecise", text))
    share = answer["of_saturation"]
    if found.limit == "stability":
        warnings.append(
            _warning(
                "stability",
                "the queue, not the SLO, ends the range: at this rate waits grow for as long as "
                "requests keep coming; plan for less",
            )
        )
    elif share is not None and share >= CLOSE_TO_SATURATION:
        warnings.append(
            _warning(
                "near_saturation",
                f"the capacity is {share:.0%} of saturation: a little more load, or steps a few "
                "percent longer, and most requests miss the SLO",
            )
        )
    lost = value["binding"]["missed_by"].get("unfinished", 0.0)
    if 0.05 < lost <= 0.5:
        warnings.append(
            _warning(
                "unfinished",
                f"{lost:.0%} of the misses are requests that were rejected or never ended: no "
                "load changes those that the engine cannot hold",
            )
        )
    return warnings


def _warning(code: str, text: str) -> dict[str, str]:
    return {"code": code, "text": text}
