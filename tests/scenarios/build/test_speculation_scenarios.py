"""Scenarios that speculate with real costs: all features together, and their reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reports.run.report import write_run_page
from scenarios.build.builder import build
from scenarios.build.workload.table import build_table
from scenarios.files.load import parse_scenario
from scenarios.run.result import RunResult
from scenarios.run.simulate import simulate
from sim.accounts import SPECULATION_DRAFT, SPECULATION_WASTE
from sim.errors import PolicyError, ScenarioError
from sim.fleet.cluster import run_cluster
from tests.equivalence.runs import check_jumps
from tests.properties.conservation import (
    check_books,
    check_order,
    check_requests,
    check_token_times,
)

pytestmark = pytest.mark.usefixtures("trusts_tmp_path")

TABLE = {1: 5, 6: 2, 12: 0}
WORKLOAD = {"preset": "azure-conv", "rate_per_s": 12.0, "num_requests": 150}
CASES: dict[str, dict[str, Any]] = {
    "chain": {"engine": {"speculative": {"method": "eagle", "drafts_by_seqs": TABLE}}},
    "tree": {"engine": {"speculative": {"method": "medusa"}}},
    "block": {"engine": {"speculative": {"method": "dflash"}, "tensor_parallel_size": 2}},
    "n-grams": {"engine": {"speculative": {"method": "ngram"}}},
    "a small model": {"engine": {"speculative": {"method": "draft_model", "model": "qwen3-4b"}}},
    "few blocks": {
        "engine": {"speculative": {"method": "eagle"}, "max_model_len": 8000},
        "kv": {"num_gpu_blocks": 700},
    },
    "swapping": {
        "engine": {
            "speculative": {"method": "eagle", "drafts_by_seqs": TABLE},
            "preemption_mode": "swap",
            "max_model_len": 8000,
        },
        "kv": {"num_gpu_blocks": 700},
    },
    "windows": {"model": "gpt-oss-20b", "engine": {"speculative": {"method": "eagle"}}},
    "experts on ranks": {
        "model": "qwen3-30b-a3b",
        "engine": {
            "speculative": {"method": "mtp"},
            "data_parallel_size": 2,
            "enable_expert_parallel": True,
        },
    },
    "dense drafter on ranks": {
        "model": "qwen3-30b-a3b",
        "engine": {
            "speculative": {"method": "eagle"},
            "data_parallel_size": 2,
            "enable_expert_parallel": True,
        },
    },
    "prompts elsewhere": {
        "engine": {"speculative": {"method": "eagle"}},
        "pools": [
            {"name": "p", "role": "prefill", "replicas": 1},
            {"name": "d", "role": "decode", "replicas": 1},
        ],
    },
    "several answers": {
        "engine": {"speculative": {"method": "eagle"}},
        "workload": {**WORKLOAD, "n": 2},
    },
    "synchronous": {"engine": {"speculative": {"method": "eagle"}, "async_scheduling": False}},
}


def scenario(**changes: Any) -> Any:
    """A scenario on top of the usual one."""
    values = {"model": "qwen3-8b", "workload": WORKLOAD, "bands": False, **changes}
    return parse_scenario(values)


@pytest.mark.parametrize("case", CASES)
def test_jumped_equals_stepped_and_the_books_balance(case: str) -> None:
    """With real prices, in every combination that is modelled."""
    given = scenario(**CASES[case])
    fleet, table = build(given).fleet, build_table(given)
    jumped = check_jumps(table, fleet)
    assert any(steps.speculates for steps in jumped.steps)
    for check in (check_requests, check_books, check_order, check_token_times):
        check(jumped)
    if case in ("few blocks", "swapping"):
        assert sum(jumped.requests.preemptions)
    plain = scenario(**{**CASES[case], "engine": {**CASES[case]["engine"], "speculative": None}})
    without = run_cluster(build_table(plain), build(plain).fleet)
    assert list(without.requests.status) == list(jumped.requests.status)
    assert np.array_equal(without.table.output_tokens, jumped.table.output_tokens)


def result(method: dict[str, Any] | None, **changes: Any) -> RunResult:
    """A run of it."""
    return simulate(scenario(engine={"speculative": method}, **changes))


def test_it_helps_when_there_is_room_and_hurts_when_there_is_none() -> None:
    """TPOT falls at low load; near saturation drafts take the time that prompts need."""
    at = {}
    for rate in (2.0, 24.0):
        workload = {**WORKLOAD, "rate_per_s": rate, "num_requests": 400}
        for name, method in (("with", {"method": "eagle"}), ("without", None)):
            at[rate, name] = result(method, workload=workload)
    tpot = {key: run.figure("tpot") or 0.0 for key, run in at.items()}
    slow, fast = (tpot[rate, "with"] / tpot[rate, "without"] for rate in (2.0, 24.0))
    assert slow < 0.8
    assert fast > 1.0
    light, heavy = at[2.0, "with"], at[24.0, "with"]
    assert light.books.e2e_ns.sum() > 0
    assert heavy.summary["speculation"]["waste_share"] > light.summary["speculation"]["waste_share"]


def test_less_is_drafted_under_load() -> None:
    """By the table; with nothing drafted a step is a plain one."""
    run = result({"method": "eagle", "drafts_by_seqs": {1: 4, 3: 1, 8: 0}})
    steps = run.steps[run.steps.decode_seqs > 0]
    each = steps.draft_tokens // steps.decode_seqs
    expected = np.select([steps.decode_seqs >= 8, steps.decode_seqs >= 3], [0, 1], 4)
    # A member that cannot be part of a step still counts among those that are drafted for.
    assert (each.to_numpy() == expected).mean() > 0.95
    assert set(each) == {0, 1, 4}


def test_the_summary_says_what_came_of_it(tmp_path: Path) -> None:
    """Accepted length, rate, shares and evidence, on the terminal and the page too."""
    run = result({"method": "medusa"})
    facts = run.summary["speculation"]
    assert facts["keeps_target_distribution"]["value"] == "no"
    steps = run.steps
    rounds = (steps.steps * steps.decode_seqs).sum()
    accepted = steps.accepted_tokens.sum()
    assert run.figure("accepted_length") == pytest.approx(1 + accepted / rounds)
    drafted = (steps.steps * steps.draft_tokens).sum()
    assert run.figure("acceptance_rate") == pytest.approx(accepted / drafted)
    posted = run.summary["step_accounts_s"]
    shares = posted[SPECULATION_DRAFT], posted[SPECULATION_WASTE]
    assert facts["ledger"]["use"] == pytest.approx(sum(shares) / sum(posted.values()))
    assert min(shares) > 0
    page = write_run_page(run.write(tmp_path / "run")).read_text(encoding="utf-8")
    assert "Speculation by medusa" in page
    assert "Keeps the target" in page


def test_rates_by_class_and_records(tmp_path: Path) -> None:
    """Classes have rates of their own; a file is replayed."""
    classes = [
        {"name": name, "preset": "azure-conv", "rate_per_s": 2.0, "num_requests": 60}
        for name in ("chat", "code")
    ]
    run = result(
        {"method": "eagle", "acceptance": {"code": 0.95, "default": 0.2}},
        workload={"classes": classes},
    )
    given = {name: [0, 0] for name in ("chat", "code")}
    table = run.log.table
    assert table.class_index is not None
    for request, rounds in run.log.requests.rounds.items():
        of_class = given[table.class_names[table.class_index[request]]]
        of_class[0] += sum(rounds)
        of_class[1] += len(rounds)
    chat, code = (tokens / steps for tokens, steps in given.values())
    assert chat == pytest.approx(1.25, rel=0.05)
    assert code == pytest.approx(1 + sum(0.95**i for i in range(1, 6)), rel=0.05)
    record = tmp_path / "accepted.csv"
    record.write_text("request,accepted\n" + "".join(f"{i},{i % 3}\n" for i in range(150)))
    replayed = result({"method": "eagle", "acceptance_file": str(record)})
    replays = replayed.log.requests.rounds
    assert all(set(rounds[:-1]) <= {1 + i % 3} for i, rounds in replays.items())
    record.write_text("accepted\nmany\n")
    with pytest.raises(ScenarioError, match=r"accepted\.csv:2"):
        result({"method": "eagle", "acceptance_file": str(record)})


def test_an_acceptance_of_ones_own(tmp_path: Path) -> None:
    """A class with one method, from a module of the user's; its faults are named."""
    own = """
class Every:
    def __init__(self, seed, *, tokens: int = 2):
        self.tokens = tokens

    def gains(self, request, sampled_tokens, drafts):
        left, gain = request.output_tokens - sampled_tokens, min(self.tokens, 1 + drafts)
        return [gain] * (left // gain) + [left % gain] * (left % gain > 0)


class Wrong(Every):
    def gains(self, request, sampled_tokens, drafts):
        return [99]


class Broken(Every):
    def gains(self, request, sampled_tokens, drafts):
        return [1 / 0]
"""
    (tmp_path / "accepted.py").write_text(own, encoding="utf-8")
    where = f"{tmp_path}/accepted.py"

    def run(name: str, **options: int) -> RunResult:
        policy = {"name": f"{where}:{name}", **options}
        return result({"method": "eagle", "acceptance_policy": policy})

    assert run("Every", tokens=3).figure("accepted_length") == pytest.approx(3, rel=0.02)
    for name, said in (
        ("Wrong", "each must give from 1 to 6"),
        ("Broken", "ZeroDivisionError"),
        ("Nobody", "has no 'Nobody'"),
    ):
        with pytest.raises((PolicyError, ScenarioError), match=said):
            run(name)
    with pytest.raises(ScenarioError, match="has no option 'pace'"):
        run("Every", pace=1)
    with pytest.raises(ScenarioError, match="module:attribute"):
        result({"method": "eagle", "acceptance_policy": "chain"})


def test_pools_of_which_one_speculates() -> None:
    """Drafts without KV of their own may be made where answers are decoded alone."""
    decode = {"name": "d", "role": "decode", "engine": {"speculative": {"method": "ngram"}}}
    for first in ("prefill", "decode"):
        pools = [{"name": "p", "role": "prefill"}, decode]
        run = simulate(scenario(pools=pools if first == "prefill" else pools[::-1]))
        assert set(run.summary["evidence"]) <= {"fitted", "extrapolated", "reported", "datasheet"}
        assert (run.figure("accepted_length") or 0) > 1
    decode["engine"] = {"speculative": {"method": "eagle"}}
    with pytest.raises(ScenarioError, match="KV of different sizes"):
        build(scenario(pools=[{"name": "p", "role": "prefill"}, decode]))


def test_large_verifications_are_pointed_out() -> None:
    """Beyond the largest graph kernels are launched one by one: it is said, and from where on."""
    notes = build(scenario(engine={"speculative": {"method": "medusa"}})).notes
    assert any("from 9 decoding sequences a rank on" in note for note in notes)
    table = {"method": "medusa", "drafts_by_seqs": {9: 0}}
    notes = build(scenario(engine={"speculative": table})).notes
    assert not any("CUDA graph" in note for note in notes)
