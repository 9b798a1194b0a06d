"""Arithmetic and bandwidth in use, against the work that the requests themselves ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from costmodels.hardware.gpus import load_gpu
from scenarios.files.load import parse_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate


def run(rate_per_s: float, prompt: int = 1000, output: int = 100, **more: Any) -> RunResult:
    lengths = {"input_tokens": {"fixed": prompt}, "output_tokens": {"fixed": output}}
    workload = {"generator": lengths, "rate_per_s": rate_per_s, "num_requests": 200}
    values = {"model": "llama-3.1-8b", "hardware": {"gpu": "H100"}, "workload": workload}
    return simulate(parse_scenario(values | more))


@pytest.mark.parametrize(("rate_per_s", "prompt", "output"), [(4, 1000, 100), (6, 3000, 10)])
def test_arithmetic_is_that_of_the_tokens(rate_per_s: float, prompt: int, output: int) -> None:
    """Two FLOPs a weight of the layers for every token, and the attention to those before it."""
    result = run(rate_per_s, prompt, output)
    tokens = len(result.log.table) * (prompt + output)
    weights = 32 * (4096 * (4096 + 2 * 1024) + 4096**2 + 3 * 4096 * 14336)
    pairs = len(result.log.table) * (prompt + output) ** 2 / 2
    head = 2 * 4096 * 128256 * len(result.log.table) * output
    flops = 2 * weights * tokens + 32 * 4 * 4096 * pairs + head
    expected = flops / load_gpu("H100").bf16_flop_per_s / result.metrics.window.length_s
    assert result.figure("arithmetic_in_use") == pytest.approx(expected, rel=0.02)


def test_busy_in_time_is_not_full() -> None:
    """Lone decodes keep a GPU busy all the time, with its arithmetic idle and memory not full."""
    result = run(4.0, 100, 200)
    busy, arithmetic, bandwidth = (
        result.figure(name) or 0.0 for name in ("gpu_busy", "arithmetic_in_use", "bandwidth_in_use")
    )
    assert result.summary["saturation"]["load"] < 0.34
    assert busy > 0.9
    assert arithmetic < 0.1
    assert 0.4 < bandwidth < busy


@pytest.mark.parametrize(
    "engine",
    [
        {"pipeline_parallel_size": 2},
        {"speculative": {"method": "ngram", "num_speculative_tokens": 3}},
    ],
)
def test_where_it_is_not_known_no_figure_is_shown(engine: dict[str, Any]) -> None:
    names = {figure["name"] for figure in run(6.0, engine=engine).summary["figures"]}
    assert "gpu_busy" in names
    assert "arithmetic_in_use" not in names


def test_two_gpus_use_half_of_each() -> None:
    one, two = run(6.0), run(6.0, engine={"tensor_parallel_size": 2})
    halves = (one.figure("arithmetic_in_use") or np.nan) / 2
    seconds = one.metrics.window.length_s / two.metrics.window.length_s
    assert two.figure("arithmetic_in_use") == pytest.approx(halves * seconds, rel=0.02)
