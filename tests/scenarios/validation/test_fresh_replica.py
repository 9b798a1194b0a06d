"""A fresh replica of gpt-oss as it was measured: it stalls at step sizes that it meets first."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from costmodels.engines.compile_stalls import compile_stalls
from costmodels.layouts.shard import shard
from scenarios.validation import runs
from scenarios.validation import system as validation_system
from scenarios.validation.accuracy import AccuracyFigure
from scenarios.validation.folder import Recording, find_recordings
from scenarios.validation.system import read_system
from sim.clock import to_ns
from sim.engine.compiling import CompileConfig, Compiling
from tests.properties.checkout import SHARED

GROUNDTRUTH = SHARED / "data" / "groundtruth2"
GRAPH_TOKENS = 1024  # vLLM's log of this model


def test_stalls_of_a_fresh_replica_are_its_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    if not GROUNDTRUTH.exists():
        pytest.skip("the measured runs (shared/data/groundtruth2) are not here")
    (recording,) = find_recordings(GROUNDTRUTH, ["m6"])
    monkeypatch.setattr(runs, "settled_s", lambda *_: 0.0)  # score what stalled, too
    # Which steps meet which sizes hangs on the host's speed by chance: the median of three.
    predicted = [_figures(recording, factor, monkeypatch) for factor in (0.9, 1.0, 1.1)]
    measured = {name: one.measured for name, one in predicted[0].items()}
    for name, within in {
        ("ttft", "p50"): 0.2,
        ("ttft", "p99"): 0.2,
        ("tpot", "p50"): 0.25,
        ("e2e", "p50"): 0.25,
        ("running", "max"): 0.2,
    }.items():
        found = median(figures[name].predicted for figures in predicted)
        assert found == pytest.approx(measured[name], rel=within), name


def _figures(
    recording: Recording, host_factor: float, monkeypatch: pytest.MonkeyPatch
) -> dict[tuple[str, str], AccuracyFigure]:
    monkeypatch.setattr(validation_system, "_host_factor", lambda fields: host_factor)
    system = read_system(recording)
    replica = system.replica
    stalls = compile_stalls(shard(replica.model, replica.layout), replica.gpu, replica.profile)
    assert stalls is not None
    config = CompileConfig(
        graph_tokens=GRAPH_TOKENS,
        bucket_tokens=stalls.bucket_tokens,
        compile_ns=to_ns(stalls.stall_s),
        is_kept=True,
    )
    # The stalls of the warm-up before the run: seconds, prompt tokens, decodes, when.
    warm_up = recording.info["warmup"]["stalls_over_300ms"]
    met = [prompts + decodes for _, prompts, decodes, _ in warm_up]
    fresh = replace(system.pool, make_features=(lambda table: Compiling(config, met=met),))
    requests, steps = recording.request_runs["p12"], recording.step_runs["p12"]
    scored = runs.score_run(replace(system, pool=fresh), "p12", requests, steps)
    return {(f.metric, f.statistic): f for f in scored.figures}
