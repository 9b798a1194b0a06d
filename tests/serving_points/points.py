"""Public serving points: read from ``../shared/data/serving-points``, and simulated as they ran.

A client sent all prompts of a row at once to one server and waited for the last answer. Tokens a
second count prompts and answers; TPOT is the mean over requests.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from costmodels.models.catalog import load_model
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from scenarios.server_flags.reading import read_command
from sim.errors import ScenarioError

FOLDER = Path(__file__).parents[3] / "shared/data/serving-points"
_GPUS = {"A100": "A100-SXM-80GB", "H100": "H100-SXM", "H200": "H200-SXM"}
_FP8 = "-FP8"
_PROFILES = {"0.10": "vllm-0.10", "0.11": "vllm-0.11", "0.13": "vllm-0.13"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPoint:
    """One row: a server's command, a load, and what was measured."""

    row_id: str
    version: str
    """Of vLLM."""
    model: str
    flags: str
    """Of the server; the last may be cut short."""
    gpu: str
    input_tokens: int
    output_tokens: int
    prompts: int
    tokens_per_s: float
    tpot_s: float

    @property
    def is_dense(self) -> bool:
        """Whether the model has no experts."""
        return not load_model(_model(self.model)[0]).num_experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was predicted of a point."""

    tokens_per_s: float
    tpot_s: float


def read_points(folder: Path = FOLDER) -> list[ServingPoint]:
    """Return the points of all tables in a folder, in order; empty without any."""
    return [
        _point(row)
        for path in sorted(folder.glob("*.csv"))
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    ]


def _point(row: dict[str, str]) -> ServingPoint:
    return ServingPoint(
        row_id=row["id"],
        version=row["vllm"],
        model=row["model"],
        flags=row["flags_as_listed"],
        gpu=row["gpu"],
        input_tokens=int(row["input_tokens"]),
        output_tokens=int(row["output_tokens"]),
        prompts=int(row["prompts_at_once"]),
        tokens_per_s=float(row["measured_total_tokens_per_s"]),
        tpot_s=float(row["measured_tpot_ms"]) * 1e-3,
    )


def point_scenario(point: ServingPoint, **engine: Any) -> Scenario:
    """Return the point as a scenario; ``engine`` has options that replace its own."""
    model, quantization = _model(point.model)
    values = _server(point.flags, model)
    options = values.setdefault("engine", {})
    profile = _PROFILES.get(point.version.rpartition(".")[0])
    if profile is not None:
        options["profile"] = profile
    if quantization is not None:
        options["quantization"] = quantization
    options.update(engine)
    values["model"] = model
    values["hardware"] = {"gpu": _GPUS.get(point.gpu, point.gpu)}
    values["kv"] = {"gpu_memory_utilization": 0.9} | values.get("kv", {})
    values["workload"] = {
        "generator": {
            "input_tokens": {"fixed": point.input_tokens},
            "output_tokens": {"fixed": point.output_tokens},
            "arrivals": "all-at-once",
        },
        "num_requests": point.prompts,
    }
    values["bands"] = False
    return parse_scenario(values)


def answer(point: ServingPoint, **engine: Any) -> Answer | str:
    """Return what fleetcast predicts of a point, or why it refuses."""
    try:
        result = simulate(point_scenario(point, **engine))
    except ScenarioError as error:
        return str(error)
    requests_per_s, tpot_s = result.figure("request_throughput"), result.figure("tpot")
    if requests_per_s is None or tpot_s is None:
        return "no request finished"
    tokens = point.input_tokens + point.output_tokens
    return Answer(tokens_per_s=requests_per_s * tokens, tpot_s=tpot_s)


def _model(name: str) -> tuple[str, str | None]:
    """Return a checkpoint's model, and the quantization that its name says."""
    if name.endswith(_FP8):
        return name.removesuffix(_FP8), "fp8_per_block"
    return name, None


def _server(flags: str, model: str) -> dict[str, Any]:
    """Read the server's flags; a last one that is cut short is left out."""
    words = flags.split()
    while True:
        command = ["vllm", "serve", model, *words]
        try:
            text = read_command("vllm", command, flags={"--gpu": "H200"}).text
        except ScenarioError:
            if not words:
                raise
            words = words[:-1]
            continue
        found: dict[str, Any] = yaml.safe_load(text)
        if "gpu_memory_utilization" not in flags.replace("-", "_"):
            found.get("kv", {}).pop("gpu_memory_utilization", None)
        if "--async-scheduling" not in words:
            found.get("engine", {}).pop("async_scheduling", None)
        return found
