"""The scheduler against a real engine's log: equal composition in every step.

Each serving run of vLLM 0.25.1 (shared data) is replayed on its logged clock, see
`scenarios.validation.conformance`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.fits.engine_log import read_request_runs, read_step_runs
from scenarios.validation.conformance import COLUMNS, score_conformance
from scenarios.validation.folder import find_recordings
from scenarios.validation.system import read_system
from sim.errors import TraceError
from tests.properties.checkout import SHARED

GROUNDTRUTH = SHARED / "data" / "groundtruth"
RUNS = {"m1": ["p10", "p34", "mt40"], "m2": ["p10", "p26", "mt40"]}


@pytest.mark.parametrize("key", RUNS)
def test_every_step_is_composed_as_the_real_engine_composed_it(key: str) -> None:
    if not GROUNDTRUTH.exists():
        pytest.skip("the measured runs (shared/data/groundtruth) are not here")
    (recording,) = find_recordings(GROUNDTRUTH, [key])
    system = read_system(recording)
    assert list(recording.request_runs) == RUNS[key]
    for run, requests in recording.request_runs.items():
        steps = recording.step_runs[run]
        score = score_conformance(system, run, requests, steps)
        assert score["first_differing"] == []
        assert (score["equal"], score["steps"]) == (1.0, len(steps))
        assert score["cached_equal"] == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run,t_sched\np10,0.1\n", "missing columns attn_pairs_prefill"),
        (
            f"run,t_sched,t_sched_end,t_out,t_upd_end,{','.join(COLUMNS)}\np10{',x' * 14}\n",
            "line 2",
        ),
    ],
)
def test_a_damaged_step_log_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_step_runs(path)


@pytest.mark.parametrize(("line", "message"), [("{", "not JSON"), ('{"run": "p10"}', "arrival")])
def test_a_damaged_request_log_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(line)
    with pytest.raises(TraceError, match=message):
        read_request_runs(path)
