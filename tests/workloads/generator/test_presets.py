"""Presets reproduce the statistics they claim, and name the source of each number."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
import yaml

from sim.errors import ScenarioError
from tests.workloads.generator.preset_statistics import preset_statistics
from workloads.generator import presets
from workloads.generator.arrivals import arrival_times_s, client_cvs
from workloads.generator.distributions import Lengths, midpoints, sample_tokens
from workloads.generator.generate import generate
from workloads.generator.plain import lengths
from workloads.generator.presets import preset, preset_description, preset_names, preset_spec
from workloads.generator.rate_changes import named_drift
from workloads.generator.spec import Users

PRESETS = yaml.safe_load(
    Path(presets.__file__).with_name("presets.yaml").read_text(encoding="utf-8")
)
LABELS = {"measured", "fitted", "extrapolated", "datasheet", "reported", "assumed"}
CLAIMED_BLOCKS = [
    (name, key)
    for name in preset_names()
    for key in preset(name).published_of_blocks
    if not key.endswith("clients")
]
WITH_CLIENTS = [name for name in preset_names() if preset(name).arrivals.clients is not None]


@pytest.mark.parametrize("name", preset_names())
def test_preset_reproduces_what_it_claims(name: str) -> None:
    chosen = preset(name)
    num_requests = 20_000 if any(kind.shares_prefixes for kind in chosen.kinds) else 100_000
    if "agentic" in name:
        num_requests = 30_000  # sessions of dozens of requests
    # Sessions count whole where the run is long beside them; their rate does not matter.
    rate_per_s = 0.01 if any(kind.sessions is not None for kind in chosen.kinds) else None
    spec = preset_spec(name, num_requests=num_requests, requests_per_s=rate_per_s)
    table = generate(spec, 0)
    statistics = preset_statistics(table, with_hits=any("hit" in key for key in chosen.published))
    for key, value in chosen.published.items():
        assert statistics[key] == pytest.approx(value, rel=chosen.tolerance[key]), key


@pytest.mark.parametrize(("name", "key"), CLAIMED_BLOCKS)
def test_lengths_are_distributed_as_claimed(name: str, key: str) -> None:
    claims = dict(preset(name).published_of_blocks[key])
    tolerance = claims.pop("tolerance")
    distribution = lengths(reduce(getitem, key.split("."), PRESETS[name]))
    assert isinstance(distribution, Lengths)
    tokens = sample_tokens(distribution, midpoints(100_000))
    for statistic, value in claims.items():
        found = tokens.mean() if statistic == "mean" else np.percentile(tokens, int(statistic[1:]))
        assert found == pytest.approx(value, rel=tolerance), statistic


@pytest.mark.parametrize("name", WITH_CLIENTS)
def test_clients_have_the_shares_and_the_variability_claimed(name: str) -> None:
    chosen = preset(name)
    claims = chosen.published_of_blocks["arrivals.clients"]
    tolerance = claims["tolerance"]
    clients = chosen.arrivals.clients
    assert clients is not None
    _, client = arrival_times_s(chosen.arrivals, 100_000, 0)
    assert client is not None
    shares = np.sort(np.bincount(client))[::-1] / len(client)
    assert shares[0] == pytest.approx(claims["top_share"], rel=tolerance)
    assert shares[:10].sum() == pytest.approx(claims["top_10_share"], rel=tolerance)
    # One client may carry half of the load: only the mean over seeds lies on the distribution.
    weights = np.array(clients.shares)
    for percent in (50, 75):
        reached = []
        for seed in range(40):
            cvs = client_cvs(clients, seed)
            order = np.argsort(cvs)
            load = np.cumsum(weights[order]) / weights.sum()
            reached.append(cvs[order][np.searchsorted(load, percent / 100)])
        assert np.median(reached) == pytest.approx(claims[f"cv_p{percent}"], rel=tolerance)


@pytest.mark.parametrize("name", preset_names())
def test_every_number_has_a_label_and_a_source(name: str) -> None:
    chosen = preset(name)
    assert set(chosen.evidence.values()) <= LABELS
    assert set(chosen.evidence) == set(chosen.sources)
    assert "arrivals.process" in chosen.evidence
    for kind in chosen.kinds:
        prefix = f"kinds.{kind.name}." if kind.name else ""
        assert {f"{prefix}input_tokens", f"{prefix}output_tokens"} <= set(chosen.evidence)
        for field in ("system_prompts", "documents", "sessions", "continuations"):
            assert (getattr(kind, field) is not None) == (f"{prefix}{field}" in chosen.evidence)
    assert all(chosen.sources.values())
    assert all(0 < tolerance <= 0.3 for tolerance in chosen.tolerance.values())
    assert all(0 < c["tolerance"] <= 0.3 for c in chosen.published_of_blocks.values())


@pytest.mark.parametrize("name", preset_names())
def test_descriptions_are_one_paragraph(name: str) -> None:
    assert "\n" not in preset_description(name)
    assert preset_description(name) == preset(name).description


def test_a_preset_takes_size_rate_and_concurrency() -> None:
    spec = preset_spec("azure-conv", duration_s=50, requests_per_s=40, max_concurrency=8)
    table = generate(spec, 0)
    assert len(table) == pytest.approx(2000, rel=0.1)
    assert spec.arrivals.cv == 1.05
    assert table.max_concurrency == 8
    assert table.source == "preset azure-conv (seed 0)"


def test_the_arrivals_and_lengths_of_azure_conv_are_those_they_always_were() -> None:
    table = generate(preset_spec("azure-conv", num_requests=20_000), 0)
    assert int(table.arrival_ns[-1]) == 3_622_222_079_877
    assert (int(table.prompt_tokens.sum()), int(table.output_tokens.sum())) == (
        23_145_971,
        4_243_980,
    )


def test_a_preset_takes_users_or_another_drift() -> None:
    table = generate(preset_spec("agentic-coding", num_requests=500, users=Users(count=4)), 0)
    assert table.after is not None
    assert (table.after < 0).sum() == 4
    with pytest.raises(ScenarioError, match="give users or a rate, not both"):
        preset_spec("rag", num_requests=9, users=Users(count=4), requests_per_s=2)
    spec = preset_spec("rag", num_requests=9, drift=named_drift("ragpulse"))
    assert spec.arrivals.drift is not None


def test_a_batch_takes_no_rate() -> None:
    assert not generate(preset_spec("offline-batch", num_requests=90), 0).arrival_ns.any()
    with pytest.raises(ScenarioError, match="sends all at once: it takes no rate"):
        preset_spec("offline-batch", num_requests=9, requests_per_s=2)


def test_unknown_preset_suggests_and_lists() -> None:
    with pytest.raises(ScenarioError, match=r"did you mean azure-conv\? known: chat-short, chat-"):
        preset("azure_conv")
