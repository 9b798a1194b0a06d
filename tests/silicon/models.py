"""The two predictors that `tests.silicon` compares at a measured point: fleetcast and
AIConfigurator."""

from __future__ import annotations

import importlib
import logging
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError, TraceError
from tests.silicon.checkpoints import checkpoint_id, model_in
from tests.silicon.launches import launch_options, refusal
from tests.silicon.points import SiliconPoint

REQUESTS_PER_SLOT = 10
"""Both clients send 10 requests for each concurrent one, all counted; warm-up is apart."""
INFERENCE_X = (0.8, 1.0)
"""InferenceX draws each length evenly from this range of the one asked for."""
SPREAD, IN_STEP = (0.9, 1.1), (1.0, 1.0)
"""Others ask for equal lengths. Requests that start together then end together, and a real client
sends the next ones one by one: an engine that mixes prompts with decodes pulls them apart, and
output lengths are spread evenly here; one whose prompts go first brings them together again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Means over requests, in seconds."""

    ttft_s: float
    tpot_s: float


def scenario(
    point: SiliconPoint, operators: str, folder: Path, host_speed_factor: float = 1.0
) -> Scenario:
    """The point as a scenario; its model and requests' lengths are written into ``folder``."""
    model, method = model_in(point, folder)
    options = launch_options(point)
    engine = {
        "operators": operators,
        "host_speed_factor": host_speed_factor,
        "quantization": method,
    }
    return parse_scenario(
        {
            "model": model,
            "hardware": {"gpu": point.gpu},
            "engine": engine | dict(options["engine"]),
            "kv": dict(options["kv"]),
            "workload": _workload(point, folder),
            "bands": False,
        }
    )


def _workload(point: SiliconPoint, folder: Path) -> dict[str, Any]:
    count = REQUESTS_PER_SLOT * point.concurrency
    in_step = point.backend == "sglang" and not point.is_dynamo
    others = IN_STEP if in_step else SPREAD
    draw = np.random.default_rng(0)
    outputs = _drawn(draw, point.osl, INFERENCE_X if point.is_inference_x else others, count)
    prompts = _drawn(draw, point.isl, INFERENCE_X if point.is_inference_x else IN_STEP, count)
    path = folder / "lengths.csv"
    rows = "".join(
        f"0,{prompt},{output}\n" for prompt, output in zip(prompts, outputs, strict=True)
    )
    path.write_text("t_s,input_tokens,output_tokens\n" + rows, encoding="utf-8")
    return {"trace": {"path": str(path)}, "max_concurrency": point.concurrency}


def _drawn(
    draw: np.random.Generator, asked: int, spread: tuple[float, float], count: int
) -> NDArray[np.int64]:
    shortest, longest = (round(share * asked) for share in spread)
    return draw.integers(shortest, longest + 1, count)


def simulated(
    point: SiliconPoint, operators: str, host_speed_factor: float = 1.0
) -> Predicted | str:
    """What fleetcast predicts, or why it refuses."""
    reason = refusal(point)
    if reason:
        return reason
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = simulate(scenario(point, operators, Path(folder), host_speed_factor))
    except (ScenarioError, TraceError) as error:
        return _without_paths(str(error))
    ttft_s, tpot_s = result.figure("ttft"), result.figure("tpot")
    if ttft_s is None or tpot_s is None:
        return "no request finished"
    return Predicted(ttft_s=ttft_s, tpot_s=tpot_s)


def _without_paths(message: str) -> str:
    return message.rpartition("config.json: ")[2]


def estimated(point: SiliconPoint) -> Predicted | str:
    """What AIConfigurator's own aggregated estimate says, asked as its regression tool asks.

    That tool passes the row's sizes, quantisation and batch of one attention replica, one prompt a
    step, and the package's current data for versions it has none of.
    """
    try:
        found = _aic_estimate(point)
    except Exception as error:  # its errors have no common base
        return f"{type(error).__name__}: {error}"[:120]
    return Predicted(ttft_s=float(found["ttft"]) * 1e-3, tpot_s=float(found["tpot"]) * 1e-3)


def _aic_estimate(point: SiliconPoint) -> dict[str, Any]:
    builders = importlib.import_module("aiconfigurator_core.sdk.config_builders")
    config = importlib.import_module("aiconfigurator_core.sdk.config")
    models = importlib.import_module("aiconfigurator_core.sdk.models")
    model_settings = builders.build_model_config(
        point.tp,
        point.pp,
        point.dp,
        point.moe_tp,
        point.ep,
        gemm_quant_mode=point.gemm_mode or None,
        moe_quant_mode=point.moe_mode or None,
    )
    model = models.get_model(_aic_name(point), model_settings, point.backend)
    load = config.RuntimeConfig(
        batch_size=max(1, point.concurrency // point.dp), isl=point.isl, osl=point.osl
    )
    backend, database = _aic_database(point.system, point.backend)
    # A backend keeps estimates by load, not by model.
    summary = type(backend)().run_agg(model, database, load, ctx_tokens=point.isl)
    found: dict[str, Any] = summary.get_result_dict()
    return found


def _aic_name(point: SiliconPoint) -> str:
    """The id whose shapes AIConfigurator is asked for, with the row's quantisation."""
    return checkpoint_id(replace(point, precision="bf16"))


@cache
def _aic_database(system: str, backend: str) -> tuple[Any, Any]:
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    databases = importlib.import_module("aiconfigurator_core.sdk.perf_database")
    factory = importlib.import_module("aiconfigurator_core.sdk.backends.factory")
    version = databases.get_latest_database_version(system=system, backend=backend)
    database = databases.get_database_view(system, backend, version, database_mode="SILICON")
    return factory.get_backend(backend), database
