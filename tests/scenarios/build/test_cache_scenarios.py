"""Prefix caches in scenarios: policies, tiers and tenants, their refusals, and their reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from reports.run.report import run_report, write_run_page
from reports.run.tables import tier_table
from reports.terminal import print_report
from scenarios.files.load import parse_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from sim.errors import ScenarioError

BLOCK = 512


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """24 conversations of 3 turns, every turn after all conversations had the one before."""
    path = tmp_path / "talks.jsonl"
    rows = []
    for turn in range(3):
        for talk in range(24):
            blocks = 4 * (turn + 1)
            ids = [0, *(1000 * (talk + 1) + j for j in range(blocks))]
            rows.append(
                {
                    "timestamp": (turn * 24 + talk) * 500,
                    "input_length": BLOCK * len(ids) - 100,
                    "output_length": 20,
                    "hash_ids": ids,
                }
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(trace: Path, kv: dict[str, Any] | None = None, **options: Any) -> RunResult:
    """A pool of 3,000 blocks: 4 or 5 conversations at their longest."""
    values = {
        "model": "llama-3.1-8b",
        "workload": {"trace": {"path": str(trace)}},
        "kv": {"num_gpu_blocks": 3000, **(kv or {})},
        "bands": False,
        **options,
    }
    return simulate(parse_scenario(values))


def hits(result: RunResult) -> list[int]:
    return list(result.log.requests.cached_tokens)


HOST = {"host": {"capacity_gib": 60}}


def test_a_host_tier_brings_back_what_device_memory_lost(trace: Path) -> None:
    without, over_host = run(trace), run(trace, {"tiers": HOST})
    assert sum(hits(over_host)) > 2 * sum(hits(without))
    device, host = over_host.summary["kv_tiers"]
    prompts = int(over_host.log.table.prompt_tokens.sum())
    assert device["hit_tokens"] + host["hit_tokens"] == sum(hits(over_host))
    assert host["hit_fraction"] == host["hit_tokens"] / prompts
    assert host["added_bytes"] == host["held_bytes"] + host["evicted_bytes"] + host["lost_bytes"]
    assert host["peak_bytes"] <= host["capacity_bytes"] == 60 * 2**30
    block_bytes = over_host.build.replica.memory.blocks.block_bytes
    assert host["loaded_bytes"] == host["hit_tokens"] // 16 * block_bytes
    assert over_host.summary["e2e_accounts_s"]["cache_load"] > 0
    frame = over_host.requests
    assert frame.loaded_tokens.sum() == host["hit_tokens"]
    (finished,) = {int((frame.status == "finished").sum())}
    accounts = [column for column in frame if str(column).endswith("_ns")]
    assert finished == len(frame)
    assert np.allclose(frame[accounts].sum(axis=1) / 1e9, frame.e2e_s)


def test_evidence_of_loads_is_that_of_the_link(trace: Path) -> None:
    """An H200's host link was measured; a user's figure is assumed."""
    labels = {}
    for name, given in (("known", {}), ("given", {"bytes_per_s": 30e9})):
        result = run(trace, {"tiers": {"host": {"capacity_gib": 60, **given}}})
        assert result.build.parts[0].cache.load_label is not None
        labels[name] = result.build.parts[0].cache.load_label
        sources = [s for s in result.summary["sources"] if "kv.tiers.host" in s["what"]]
        assert {s["what"].split()[1].rstrip(",") for s in sources} == {
            "loaded",
            "written",
            "latency",
        }
    assert labels == {"known": "measured", "given": "assumed"}


def test_compressed_content_takes_less_room_and_time(trace: Path) -> None:
    plain, packed = (
        run(trace, {"tiers": {"host": {"capacity_gib": 60, "compression": ratio}}})
        for ratio in (1, 4)
    )
    assert hits(plain) == hits(packed)
    (_, a), (_, b) = plain.summary["kv_tiers"], packed.summary["kv_tiers"]
    assert a["loaded_bytes"] == 4 * b["loaded_bytes"]


def test_engines_share_a_remote_pool_and_nothing_else(trace: Path) -> None:
    pool = {"pool": {"replicas": 2}}
    tiers = {"remote": {"bytes_per_s": 20e9}, "load": "always"}
    alone = run(trace, {"tiers": {"host": {"capacity_gib": 60}, "load": "always"}}, **pool)
    shared = run(trace, {"tiers": tiers}, **pool)
    assert sum(hits(shared)) > sum(hits(alone))
    assert {f["tier"] for f in shared.summary["kv_tiers"]} == {"device", "remote"}


@pytest.mark.parametrize(
    "kv",
    [
        {"eviction": "lfu"},
        {"eviction": "fifo"},
        {"eviction": {"name": "ttl", "seconds": 5}},
        {"eviction": "lru", "prefix_index": "radix"},
        {"prefix_index": "radix", "block_size": 1, "num_gpu_blocks": 48_000},
        {"tiers": {**HOST, "write": "back", "layerwise": True}},
        {"tiers": {**HOST, "ssd": {}, "remote": {"pool_bytes_per_s": 1e10}}},
    ],
    ids=str,
)
def test_all_of_it_from_yaml(trace: Path, kv: dict[str, Any]) -> None:
    result = run(trace, kv)
    counts = result.summary["requests"]
    assert counts["finished"] == counts["arrived"] == 72


def test_a_short_lifetime_hits_less(trace: Path) -> None:
    lasting, short = (
        run(trace, {"eviction": {"name": "ttl", "seconds": s}, "num_gpu_blocks": 20_000})
        for s in (1000, 2)
    )
    assert hits(lasting) == hits(run(trace, {"num_gpu_blocks": 20_000}))
    assert set(hits(short)) == {0, BLOCK}  # what every prompt begins with stays in use
    assert sum(hits(lasting)) > 4 * sum(hits(short))


@pytest.mark.parametrize(
    ("kv", "options", "says"),
    [
        ({"tiers": HOST, "enable_prefix_caching": False}, {}, "enable_prefix_caching is false"),
        ({"tiers": {"host": {"capacity_gib": 1e-6}}}, {}, "holds no block"),
        ({"tiers": HOST}, {"hardware": {"host_memory_gb": 32}}, "host_memory_gb 32"),
        ({"tiers": HOST, "num_gpu_blocks": None}, {"model": "gpt-oss-20b"}, "windows"),
        ({"tiers": {"remote": {}}}, {"hardware": {"gpu": "MI300X"}}, "kv.tiers.remote.bytes_per_s"),
        ({"tiers": {"host": {}}}, {}, "capacity_gib"),
        ({"tiers": {"hots": {}}}, {}, "did you mean"),
        ({"eviction": "mru"}, {}, "unknown eviction policy"),
        ({"eviction": "ttl"}, {}, "needs seconds"),
        ({"prefix_index": "radixx"}, {}, "radix"),
    ],
)
def test_what_cannot_be_is_refused(
    trace: Path, kv: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ScenarioError, match=says):
        run(trace, kv, **options)


def test_the_reports_say_where_hits_came_from(trace: Path, tmp_path: Path) -> None:
    result = run(trace, {"tiers": {**HOST, "ssd": {}}})
    assert [row[0] for row in tier_table(result.summary).rows] == [
        "device memory",
        "host memory",
        "disks",
    ]
    console = Console(width=80, record=True, color_system=None)
    print_report(run_report(result.summary), console)
    text = console.export_text()
    assert "Where prefix hits come from" in text
    assert "…" not in text
    page = write_run_page(result.write(tmp_path / "results")).read_text()
    assert "Prefix cache by tier" in page
    assert "host memory" in page
    plain = write_run_page(run(trace).write(tmp_path / "plain")).read_text()
    assert "Prefix cache by tier" not in plain


def codes(result: RunResult) -> set[str]:
    return {warning["code"] for warning in result.summary["warnings"]}


def test_tiers_that_are_of_no_use_or_too_slow_are_warned_of(trace: Path) -> None:
    assert not codes(run(trace, {"tiers": HOST})) & {"nothing_to_cache", "tier_links"}
    slow = {"remote": {"bytes_per_s": 1e8}, "load": "always"}
    assert "tier_links" in codes(run(trace, {"tiers": slow}))
    plain = {"preset": "azure-conv", "num_requests": 20}
    assert "nothing_to_cache" in codes(run(trace, {"tiers": HOST}, workload=plain))


def tenants(trace: Path, **kv: Any) -> RunResult:
    """Two tenants with the very same prompts, and all tiers there are."""
    workload = {
        "classes": [
            {"name": name, "trace": {"path": str(trace)}, "rate_per_s": rate}
            for name, rate in (("a", 2.0), ("b", 1.9))
        ]
    }
    tiers = {**HOST, "remote": {"bytes_per_s": 20e9}, "load": "always"}
    return run(trace, {"tiers": tiers, **kv}, workload=workload, pool={"replicas": 2})


def foreign_hits(result: RunResult) -> int:
    """Tokens that a request hit although its own tenant had not brought them before."""
    table = result.log.table
    assert table.chains is not None
    assert table.class_index is not None
    brought: list[set[int]] = [set(), set()]
    foreign = 0
    order = np.argsort(np.array(result.log.requests.admitted_ns), kind="stable").tolist()
    for index in order:
        chain = table.chains.ids[table.chains.offsets[index] : table.chains.offsets[index + 1]]
        own = brought[int(table.class_index[index])]
        known = next((i for i, name in enumerate(chain.tolist()) if name not in own), len(chain))
        foreign += max(0, result.log.requests.cached_tokens[index] - known * BLOCK)
        own |= set(chain.tolist())
    return foreign


@pytest.mark.parametrize("index", ["block_hash", "radix"])
def test_a_hit_never_crosses_tenants_unless_the_scenario_says_so(trace: Path, index: str) -> None:
    """One tenant asks for exactly what the other has just asked for, in every tier."""
    apart = tenants(trace, prefix_index=index)
    assert foreign_hits(apart) == 0
    assert sum(hits(apart)) > 0
    ids = apart.log.table.chains
    assert ids is not None
    of = apart.log.table.class_index
    assert of is not None
    per_request = np.repeat(of, np.diff(ids.offsets))
    assert not set(ids.ids[per_request == 0].tolist()) & set(ids.ids[per_request == 1].tolist())
    together = tenants(trace, prefix_index=index, share_across_tenants=True)
    assert foreign_hits(together) > 0
    assert sum(hits(together)) > sum(hits(apart))


def test_sharing_is_of_all_pools() -> None:
    values = {
        "model": "llama-3.1-8b",
        "workload": {"preset": "azure-conv", "num_requests": 5},
        "pools": [{"name": "one", "kv": {"share_across_tenants": True}}],
    }
    with pytest.raises(ScenarioError, match="of all pools"):
        simulate(parse_scenario(values))
