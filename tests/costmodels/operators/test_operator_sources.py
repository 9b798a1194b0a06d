"""The user chooses the source of kernel times; it is reported, and never replaced silently."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.engines.profile import load_profile
from costmodels.operators.sources import Choice
from costmodels.steps.compile import StepOptions, compile_step_cost
from costmodels.tables.kinds import Precision
from costmodels.tables.store import save_table
from costmodels.tables.table import OperatorTable, TableMeta, operator_table
from scenarios.build.replica import Replica
from scenarios.build.resolve import resolve
from scenarios.files.load import parse_scenario
from sim import accounts
from sim.errors import ScenarioError
from sim.shape import StepShape, causal_pairs

needs_aic = pytest.mark.skipif(
    find_spec("aiconfigurator_core") is None, reason="fleetcast[aic] is not installed"
)
DECODE = StepShape(64, 64_000, logits=64)
PREFILL = StepShape(
    prefill_seqs=1, prefill_tokens=4096, prefill_pairs=causal_pairs(0, 4096), logits=1
)


def built(operators: Choice, model: str = "llama-3.1-8b", **engine: Any) -> Replica:
    return resolve(
        parse_scenario(
            {
                "model": model,
                "engine": {"operators": operators, **engine},
                "workload": {"preset": "azure-conv", "num_requests": 10},
            }
        )
    )


def gemm_table(gpu: str, scale: float = 1.0) -> OperatorTable:
    """GEMMs of the widths of Llama-3.1-8B, each at 1 TB/s of weights plus 100 TFLOP/s."""
    m, shape = np.array([1.0, 64, 256, 1024, 8192]), [(6144, 4096), (28672, 4096), (4096, 14336)]
    rows = [(a, n, k) for n, k in (*shape, (4096, 4096), (128256, 4096)) for a in m]
    columns = {
        name: np.array(column) for name, column in zip("mnk", zip(*rows, strict=True), strict=True)
    }
    weights, flops = columns["n"] * columns["k"], 2 * columns["m"] * columns["n"] * columns["k"]
    columns["seconds"] = scale * (2 * weights / 1e12 + flops / 100e12)
    meta = TableMeta(
        kind="gemm",
        gpu=gpu,
        engine="test",
        engine_version="1",
        kernel="made up",
        precision=Precision(),
        date="2026-11-30",
        attribution="a test",
        licence="none",
    )
    return operator_table(meta, columns)


def test_the_datasheet_alone_has_no_fitted_constant() -> None:
    plain, datasheet = built("fitted"), built("datasheet")
    assert datasheet.cost.kernels.efficiency.name == "generic"
    labels = datasheet.cost.evidence()
    assert labels[accounts.DECODE_WEIGHT_READS] == "datasheet"
    assert plain.cost.evidence()[accounts.DECODE_WEIGHT_READS] == "fitted"
    for shape in (DECODE, PREFILL):
        ratio = datasheet.cost.price(shape).gpu_ns / plain.cost.price(shape).gpu_ns
        assert 0.8 < ratio < 1.25


def test_a_table_serves_its_operators_and_says_so(tmp_path: Path) -> None:
    save_table(gemm_table("H200-SXM"), tmp_path / "gemm.parquet")
    found = built(str(tmp_path / "gemm.parquet")).cost
    row = {r.name: r for r in found.describe(DECODE)}["gate_up"]
    alone_s = 32 * (2 * 28672 * 4096 / 1e12 + 2 * 64 * 28672 * 4096 / 100e12)
    assert row.seconds == pytest.approx(alone_s, rel=1e-6)
    assert any("a test" in str(source["source"]) for source in found.sources())
    assert found.evidence()[accounts.DECODE_WEIGHT_READS] == "fitted"
    assert found.evidence()[accounts.REMAINDER] == "fitted"


def test_a_changed_timing_changes_the_answer(tmp_path: Path) -> None:
    prices = []
    for scale in (1.0, 1.1):
        path = tmp_path / f"{scale}.parquet"
        save_table(gemm_table("H200-SXM", scale), path)
        prices.append(built(str(path)).cost.price(DECODE).gpu_ns)
    assert prices[1] > 1.05 * prices[0]


def test_measured_kernels_leave_the_engines_own_to_its_profile() -> None:
    """Once a step, with its sampler; constants fitted to whole steps have it in them."""
    found = {}
    for operators in ("ours", "fitted"):
        cost = built(operators).cost
        found[operators] = {row.name: row.seconds for row in cost.describe(DECODE)}
        assert sum(found[operators].values()) == pytest.approx(cost.price(DECODE).gpu_ns / 1e9)
    profile = load_profile("vllm-0.25")
    tables = built("ours").kernels.operators.tables
    assert tables is not None
    assert tables.tables("elementwise")[0].meta.kernel == profile.kernels["elementwise"]
    sampler = next(row for row in built("ours").cost.describe(DECODE) if row.name == "sampling")
    assert sampler.seconds > profile.between_passes_s
    without = replace(profile, between_passes_s=0.0)
    gemms = built({"default": "fitted", "gemm": "ours"})
    for other in (profile, without):
        cost = compile_step_cost(
            gemms.model,
            gemms.gpu,
            StepOptions(
                max_num_batched_tokens=8192,
                max_num_seqs=256,
                profile=other,
                operators=gemms.kernels.operators,
            ),
        )
        assert cost.price(DECODE) == gemms.cost.price(DECODE)
    assert any("between_passes_s" in str(s["what"]) for s in built("ours").cost.sources())


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        ("magic", "neither fitted, datasheet, ours nor aic"),
        ("missing.parquet", "missing.parquet"),
    ],
)
def test_unknown_sources_are_refused(operators: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        _ = built(operators).kernels


def test_a_table_of_another_gpu_is_refused(tmp_path: Path) -> None:
    save_table(gemm_table("H100-SXM"), tmp_path / "gemm.parquet")
    with pytest.raises(ScenarioError, match="measured on H100-SXM, the scenario's GPU is H200-SXM"):
        _ = built(str(tmp_path / "gemm.parquet")).kernels


@pytest.mark.skipif(find_spec("aiconfigurator_core") is not None, reason="it is installed")
def test_a_missing_package_is_asked_for() -> None:
    with pytest.raises(ScenarioError, match=r"fleetcast\[aic\]"):
        _ = built("aic").kernels


@needs_aic
@pytest.mark.parametrize(
    ("model", "quantization"),
    [("llama-3.1-8b", None), ("llama-3.1-8b", "fp8"), ("qwen3-30b-a3b", None)],
)
def test_aiconfigurators_tables_price_a_step(model: str, quantization: str | None) -> None:
    cost = built("aic", model, quantization=quantization).cost
    plain = built("fitted", model, quantization=quantization).cost
    for shape in (DECODE, PREFILL):
        assert 0.6 < cost.price(shape).gpu_ns / plain.price(shape).gpu_ns < 1.5
    sources = " ".join(str(source["source"]) for source in cost.sources())
    assert "aiconfigurator-core" in sources
    assert "Apache-2.0" in sources
