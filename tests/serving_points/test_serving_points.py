"""Public serving points: how rows are read, and how near the simulation comes to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving_points.points import Answer, ServingPoint, answer, point_scenario, read_points
from tests.serving_points.scores import Scored, is_trusted, score

HEADER = (
    "id,source_page,vllm,model,flags_as_listed,gpu,input_tokens,output_tokens,prompts_at_once,"
    "measured_total_tokens_per_s,measured_tpot_ms\n"
)
ROW = "P1,m/h200.md,0.11.0,Qwen/Qwen3-30B-A3B-FP8,-tp 2 --max-num,H200,100,10,7,5000,20\n"
NO_DATA = "no serving points in ../shared/data"


def point(tmp_path: Path, row: str = ROW) -> ServingPoint:
    (tmp_path / "points.csv").write_text(HEADER + row, encoding="utf-8")
    (found,) = read_points(tmp_path)
    return found


def test_a_row_as_a_scenario(tmp_path: Path) -> None:
    found = point(tmp_path)
    assert (found.tokens_per_s, found.tpot_s, found.is_dense) == (5000, 0.02, False)
    scenario = point_scenario(found)
    engine = scenario.engine
    # The last flag is cut short and says nothing.
    assert (engine.tensor_parallel_size, engine.max_num_batched_tokens) == (2, None)
    assert (engine.profile, engine.quantization) == ("vllm-0.11", "fp8_per_block")
    assert engine.async_scheduling is None
    assert scenario.hardware.gpu == "H200-SXM"
    assert scenario.kv.gpu_memory_utilization == 0.9


def test_flags_of_a_row(tmp_path: Path) -> None:
    flags = "--async-scheduling --max-num-batched-tokens 4096 --gpu-memory-utilization 0.8"
    scenario = point_scenario(point(tmp_path, ROW.replace("-tp 2 --max-num", flags)))
    assert scenario.engine.async_scheduling
    assert scenario.engine.max_num_batched_tokens == 4096
    assert scenario.kv.gpu_memory_utilization == 0.8


def test_tokens_per_second_count_prompts_and_answers(tmp_path: Path) -> None:
    found = answer(point(tmp_path))
    assert isinstance(found, Answer)
    slower = answer(point(tmp_path), max_num_seqs=1)
    assert isinstance(slower, Answer)
    # One request at a time: its prefill, and nine more tokens.
    assert 7 * 110 / slower.tokens_per_s > 7 * 9 * slower.tpot_s
    assert slower.tokens_per_s < found.tokens_per_s


def test_refused_points_count_as_all_wrong(tmp_path: Path) -> None:
    known = point(tmp_path)
    rows = [
        Scored(point=known, answer=Answer(tokens_per_s=5500, tpot_s=0.02)),
        Scored(point=known, answer="too large"),
        Scored(point=known, answer=Answer(tokens_per_s=4000, tpot_s=0.01)),
    ]
    found = score(rows)
    assert found.median == pytest.approx(0.2)
    assert found.within == pytest.approx(2 / 3)
    assert is_trusted(rows[0])


def predictions() -> list[Scored]:
    points: list[Any] = read_points()
    if not points:
        pytest.skip(NO_DATA)
    return [Scored(point=one, answer=answer(one)) for one in points]


def test_the_bar_on_h200_and_a100() -> None:
    """Median error at most 15%. Rows of 128 + 4 tokens wait for their API servers, not modelled
    here; of the others nine in ten are within 35%."""
    rows = [row for row in predictions() if is_trusted(row)]
    assert score(rows).median <= 0.15
    longer = [row for row in rows if row.point.input_tokens > 128]
    assert score(longer).within >= 0.9
    assert score(longer).tpot_median <= 0.15
    # None of the groups is off in one direction by more than its bar.
    for group in {row.group for row in longer}:
        of_group = [row.throughput_error for row in longer if row.group == group]
        assert abs(np.median(of_group)) <= 0.15
