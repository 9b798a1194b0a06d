"""A measuring session of a stand-in for vLLM's engine core, and the fit to what it recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from calibrate.engines.driver import CoreDriver
from calibrate.engines.grid import GRIDS, GridPoint, grid_points
from calibrate.engines.session import measure_engine
from calibrate.engines.steps import measure_point
from costmodels.datafile import read_data
from costmodels.engines.profile import scale_host
from scenarios.build.resolve import resolve
from scenarios.calibration.measured import fit_measured
from scenarios.files.flags import ANY_WORKLOAD
from scenarios.files.load import parse_scenario
from scenarios.validation.folder import find_recordings
from scenarios.validation.points import point_of_run
from tests.calibrate.engines.fake_core import BLOCK_SIZE, NUM_BLOCKS, FakeCore

MODEL = "meta-llama/Llama-3.1-8B"
SLOWER_GPU, SLOWER_HOST = 0.75, 1.4


def slow_core() -> FakeCore:
    """Return a core on a machine with a slower host and less bandwidth than the built-in ones."""
    scenario = parse_scenario(
        {"model": MODEL, "hardware": {"gpu": "H200"}, "workload": ANY_WORKLOAD}
    )
    known = resolve(scenario)
    fitted = replace(
        known.fitted,
        gemm_memory=known.fitted.gemm_memory * SLOWER_GPU,
        gemm_compute=known.fitted.gemm_compute * SLOWER_GPU,
        attention_memory=known.fitted.attention_memory * SLOWER_GPU,
    )
    profile = scale_host(known.profile, SLOWER_HOST)
    return FakeCore(replace(known, fitted=fitted, profile=profile).cost)


def driver_of(core: FakeCore) -> CoreDriver:
    """Return a driver on the core's own clock."""
    return CoreDriver(core, core.make, 128_256, clock=core.clock, sleep=core.sleep)


def info() -> dict[str, object]:
    """Return the description of the engine that the stand-in plays."""
    return {
        "model_name": MODEL,
        "hf_config": read_data("models/models.yaml")["models"][MODEL]["config"],
        "gpu": "NVIDIA H200, 580.159.04",
        "vllm": "0.25.1",
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 1024,
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": NUM_BLOCKS,
        "max_model_len": 32768,
        "async_scheduling": False,
        "prefix_caching": True,
    }


def test_every_point_is_known_to_validate_by_its_name() -> None:
    for grid in GRIDS:
        for point in grid_points(grid):
            assert point_of_run(point.name) == {"kind": point.kind, **point.parameters}


def test_a_point_measures_the_steps_that_its_name_says() -> None:
    core = slow_core()
    driver = driver_of(core)
    (row,) = measure_point(driver, GridPoint("mixed", 32, 1024, 1, 512))
    asked = [step for step in driver.steps if step.prefill_tokens == 512]
    assert len(asked) == 4
    assert all(step.decode_seqs == 32 for step in asked)
    assert {step.ctx_prefill_start_sum for step in asked} == {0}
    assert {step.attn_pairs_prefill for step in asked} == {512 * 513 // 2}
    assert row["n"] == 4
    (row,) = measure_point(driver, GridPoint("extend", context=4096, prompts=1, prompt_tokens=512))
    assert {step.ctx_prefill_start_sum for step in driver.steps} == {4096}
    assert row["ms_min"] <= row["ms_median"] <= row["ms_max"]


def test_what_does_not_fit_is_left_out() -> None:
    driver = driver_of(slow_core())
    assert measure_point(driver, GridPoint("decode", decodes=256, context=16384)) == []


def test_a_fit_halves_the_error_of_the_steps_and_runs_that_it_has_not_seen(tmp_path: Path) -> None:
    said: list[str] = []
    measure_engine(
        driver_of(slow_core()),
        info(),
        tmp_path,
        key="mine",
        grid="compact",
        window_s=20,
        budget_s=1e9,
        say=said.append,
    )
    (recording,) = find_recordings(tmp_path)
    assert len(recording.request_runs) == 2
    assert len(recording.controlled_runs) > 20
    facts = fit_measured(
        tmp_path, "mine", tmp_path / "mine.yaml", machine="a stand-in", base="vllm-0.25"
    )
    errors = {(row["what"], row["statistic"]): row for row in facts["errors"]}
    for what in (("decode steps", "median"), ("all steps", "median")):
        assert errors[what]["before"] > 0.1
        assert errors[what]["after"] < errors[what]["before"] / 2
    served = errors["serving runs, TPOT", "p50"]
    assert served["after"] < served["before"] / 2


def test_a_session_ends_within_its_budget(tmp_path: Path) -> None:
    said: list[str] = []
    measure_engine(
        driver_of(slow_core()),
        info(),
        tmp_path,
        key="cut",
        grid="full",
        window_s=0,
        budget_s=0,
        say=said.append,
    )
    assert said[-1].startswith("time is up after 0 of")
    assert not find_recordings(tmp_path)[0].controlled_runs
