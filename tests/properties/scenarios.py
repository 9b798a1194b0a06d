"""Helpers for tests of scenarios: small scenarios, traces, and the output of their runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from costmodels.models.spec import ModelSpec
from scenarios.build.replica import Replica
from scenarios.build.resolve import resolve
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.run.result import RunResult
from sim.errors import ScenarioError
from tests.properties.checkout import CHECKOUT

SHIPPED = sorted((CHECKOUT / "scenarios").glob("*.yaml"))
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def small(**workload: Any) -> dict[str, Any]:
    """A scenario of ten short requests a run of milliseconds answers."""
    generator = {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 5}}
    base = {"generator": generator, "rate_per_s": 5, "num_requests": 10}
    return {"model": "meta-llama/Llama-3.1-8B", "workload": base | workload}


def replica_of(model: str | ModelSpec, gpu: str, **sections: Any) -> Replica:
    """A replica that simulates nothing: a model by name, or one that is made up, on a GPU."""
    name = model if isinstance(model, str) else model.name
    values = {"model": name, "hardware": {"gpu": gpu}, "workload": ANY_WORKLOAD, **sections}
    made_up = None if isinstance(model, str) else model
    return resolve(parse_scenario(values), model=made_up)


def write(path: Path, values: object) -> Path:
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values, sort_keys=False))
    return path


def azure_trace(path: Path, rows: int, gap_s: float = 0.5) -> Path:
    at = pd.Timestamp("2023-11-16 18:00:00") + pd.to_timedelta(np.arange(rows) * gap_s, unit="s")
    lines = [f"{time:%Y-%m-%d %H:%M:%S.%f}0,{300 + i},{20 + i % 7}\n" for i, time in enumerate(at)]
    return write(path, AZURE_HEADER + "".join(lines))


def results(result: RunResult) -> dict[str, Any]:
    """All of a summary but how long the computer took."""
    summary = json.loads(json.dumps(result.summary))
    del summary["run"]["wall_s"]
    return dict(summary)


def fault(path: Path, *overrides: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, overrides)
    return str(caught.value)


def codes(result: RunResult) -> list[str]:
    return [warning["code"] for warning in result.summary["warnings"]]
