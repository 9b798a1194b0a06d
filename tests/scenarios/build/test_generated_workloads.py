"""Generated workloads in scenario files: examples of every section, and messages for mistakes."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scenarios.build.workload.table import build_table
from scenarios.files.dump import dump_scenario, save_scenario
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.run.simulate import simulate
from sim.engine.config import EngineConfig
from sim.errors import ScenarioError, TraceError
from sim.request_table import RequestTable
from tests.properties.checkout import SHARED
from tests.properties.costs import AffineCost
from tests.properties.engines import small_run
from tests.properties.scenarios import SHIPPED, fault, write
from tests.workloads.generator.preset_statistics import matched_tokens
from workloads.generator.generate import generate
from workloads.generator.presets import preset_spec

LENGTHS = """\
    input_tokens: {lognormal: [[.63, 6.27, 1.00], [.37, 6.98, .06]], max: 8000}
    output_tokens: {gamma: [[1, 2.0, 70]], min: 2, max: 1000}
"""
EXAMPLES = {
    "weibull": "  rate_per_s: 4\n  generator:\n    arrivals: weibull\n    shape: .7\n" + LENGTHS,
    "weibull by cv": "  rate_per_s: 4\n  generator:\n    arrivals: weibull\n    cv: 3\n" + LENGTHS,
    "bursts": """\
  rate_per_s: 4
  generator:
    on_off:
      on_s: {mean: 30}
      off_s: {lognormal: [[1, 4.6, .2]], min: 80, max: 150}
"""
    + LENGTHS,
    "bursts by their gap": """\
  generator:
    on_off: {on_s: {fixed: 10}, off_s: {fixed: 30}, gap_s: .05}
"""
    + LENGTHS,
    "swing": "  rate_per_s: 4\n  drift: {amplitude: .4, period_s: 1800}\n  generator:\n" + LENGTHS,
    "hours": "  rate_per_s: 4\n  drift: {factors: [1, 3, 2], period_s: 600}\n  generator:\n"
    + LENGTHS,
    "profile": "  rate_per_s: 4\n  drift: {profile: ragpulse, start_s: 36000}\n  generator:\n"
    + LENGTHS,
    "clients": """\
  rate_per_s: 4
  generator:
    arrivals: gamma
    clients: {count: 50, top_10_share: .8, cv: {p50: 1.2, p75: 2.2, p90: 7}}
    system_prompts: {tokens: 300, per_client: true}
"""
    + LENGTHS,
    "system prompts": """\
  rate_per_s: 4
  generator:
    system_prompts: {tokens: 500, count: 20, zipf: 1, part_of_input: true}
"""
    + LENGTHS,
    "passages": """\
  rate_per_s: 4
  generator:
    system_prompts: {tokens: 1024}
    documents:
      collection: 3000
      zipf: .8
      tokens: {gamma: [[1, 10.5, 25.3]], max: 512}
      per_request: {fixed: 6}
      probability: .8
"""
    + LENGTHS,
    "images": """\
  rate_per_s: 4
  generator:
    documents: {tokens: {fixed: 576}, per_request: {another: [.2, .6]}}
"""
    + LENGTHS,
    "chat": """\
  rate_per_s: 4
  generator:
    sessions:
      turns: {mean: 4, max: 30}
      think_s: {lognormal: [[1, 3.5, 1]]}
      new_tokens: {lognormal: [[1, 4, 1]]}
"""
    + LENGTHS,
    "reasoning": """\
  rate_per_s: 4
  generator:
    sessions: {turns: {fixed: 3}, think_s: {mean: 20}, kept_output: .3}
"""
    + LENGTHS,
    "agents": """\
  users: 10
  think_s: {mean: 60}
  generator:
    sessions:
      turns: {gamma: [[1, .9, 30]], max: 200}
      think_s: {lognormal: [[.86, 2.5, 1.3], [.14, 4.6, 2.3]], max: 3600}
      resets: {probability: .02, kept: {p10: .04, p50: .21, p90: .44}, dropped: .2}
      max_input_tokens: 30000
    block_tokens: 64
"""
    + LENGTHS,
    "continuations": """\
  rate_per_s: 4
  generator:
    continuations: {probability: .35, shared: {p10: .3, p50: .85}, delay_s: {mean: 60}}
"""
    + LENGTHS,
    "users": "  users: 16\n  think_s: {fixed: 2}\n  generator:\n" + LENGTHS,
}


def scenario_text(workload: str) -> str:
    return f"model: meta-llama/Llama-3.1-8B\nworkload:\n  num_requests: 300\n{workload}"


def table_of(tmp_path: Path, workload: str) -> RequestTable:
    return build_table(load_scenario(write(tmp_path / "one.yaml", scenario_text(workload))))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_section_has_an_example(name: str, tmp_path: Path) -> None:
    """It is read and generated, and a scenario written out again means the same."""
    path = write(tmp_path / "one.yaml", scenario_text(EXAMPLES[name]))
    scenario = load_scenario(path)
    table = build_table(scenario)
    assert len(table) == 300
    save_scenario(scenario, tmp_path / "saved.yaml")
    for text in ((tmp_path / "saved.yaml").read_text(), dump_scenario(scenario)):
        again = build_table(load_scenario(write(tmp_path / "again.yaml", text)))
        assert np.array_equal(again.prompt_tokens, table.prompt_tokens)
        assert np.array_equal(again.arrival_ns, table.arrival_ns)
        assert (again.chains is None) == (table.chains is None)


def test_examples_do_what_they_say(tmp_path: Path) -> None:
    bursts = table_of(tmp_path, EXAMPLES["bursts by their gap"])
    gaps_s = np.diff(bursts.arrival_ns) / 1e9
    assert np.median(gaps_s) == pytest.approx(0.05 * np.log(2), rel=0.3)
    passages = table_of(tmp_path, EXAMPLES["passages"])
    assert passages.chains is not None
    assert set(matched_tokens(passages.chains)[1:].tolist()) >= {1024}
    agents = table_of(tmp_path, EXAMPLES["agents"])
    assert agents.prompt_tokens.max() <= 30_000
    assert agents.chains is not None
    assert agents.chains.block_tokens == 64
    assert agents.source == "generated: 10 users (seed 0)"


FAULTS = {
    "rate_per_s: 4, users: 3": "rate_per_s does not go with them",
    "users: 3, drift: {profile: m-small}": "drift does not go with them",
    "users: 3, max_concurrency: 3": "max_concurrency does not go with them",
    "rate_per_s: 4, think_s: {fixed: 1}": "think_s is that of users",
    "rate_per_s: 4, drift: {profile: m-small, period_s: 5}": "a profile has its own",
    "rate_per_s: 4, drift: {factors: []}": "at least 1 item",
    "rate_per_s: 4, drift: {factors: [0, 0], period_s: 5}": "nothing would ever arrive",
    "rate_per_s: 4, drift: {amplitude: .4, factors: [1, 2]}": "give one of profile",
    "rate_per_s: 4, drift: {profil: x}": "unknown key; did you mean 'profile'?",
    "drift: {profile: m-small}, arrivals: all-at-once": "have no rate_per_s, duration_s or drift",
    "rate_per_s: 4, arrivals: gamma, shape: 2": "shape is of weibull arrivals",
    "rate_per_s: 4, clients: {count: 5, top_10_share: .5}": "the ten largest of 5 clients",
    "rate_per_s: 4, clients: {shares: [1], zipf: 2}": "shares say it all",
    "rate_per_s: 4, clients: {count: 5, cv: {p50: 0}}": "cv must be from 0.01 to 100, not 0",
    "rate_per_s: 4, cv: 2, clients: {count: 5}": "clients have a cv of their own",
    "rate_per_s: 4, on_off: {on_s: {fixed: 0}, off_s: {fixed: 1}}": "on_s must be above 0",
    "rate_per_s: 4, on_off: {on_s: {fixed: 1, mean: 2}, off_s: {fixed: 1}}": "exactly one of fixed",
    "rate_per_s: 4, system_prompts: {tokens: 9, per_client: true}": "per_client needs clients",
    "rate_per_s: 4, sessions: {turns: {mean: .5}}": "sessions.turns.mean",
    "rate_per_s: 4, sessions: {turns: {another: [1]}}": "is 1, so give max",
    "rate_per_s: 4, sessions: {turns: {fixed: 2}, history: false, kept_output: .5}": "with history",
    "rate_per_s: 4, sessions: {turns: {fixed: 2}, resets: {probability: .1, kept: {p50: 2}}}": (
        "kept must be from 0 to 1, not 2"
    ),
    "rate_per_s: 4, sessions: {turns: {fixed: 2}, new_tokens: {fixed: 0}}": "at least 1",
    "rate_per_s: 4, sessions: {turns: {fixed: 2}}, continuations: "
    "{probability: 1, shared: {fixed: 1}, delay_s: {fixed: 1}}": "not both",
    "rate_per_s: 4, input_tokens: {lognormal: [[1, 2]]}": "a list of weight, mu, sigma",
    "rate_per_s: 4, input_tokens: {gamma: [[.5, 2, 3]]}": "must sum to 1, not 0.5",
    "rate_per_s: 4, input_tokens: {from_file: x.csv, fixed: 3}": "give either fixed or lognormal",
    "rate_per_s: 4, input_tokens: {from_file: x.csv, max: 3}": "min and max clip",
}
IN_WORKLOAD = ("rate_per_s", "users", "think_s", "drift", "max_concurrency")


@pytest.mark.parametrize(("yaml_text", "words"), FAULTS.items())
def test_what_does_not_fit_is_explained(yaml_text: str, words: str, tmp_path: Path) -> None:
    import yaml

    given = yaml.safe_load(f"{{{yaml_text}}}")
    workload: dict[str, Any] = {k: given.pop(k) for k in IN_WORKLOAD if k in given}
    lengths = {"input_tokens": {"fixed": 9}, "output_tokens": {"fixed": 9}}
    workload |= {"num_requests": 9, "generator": lengths | given}
    values = {"model": "meta-llama/Llama-3.1-8B", "workload": workload}
    assert words in fault(write(tmp_path / "one.yaml", values))


def test_users_need_a_number_of_requests(tmp_path: Path) -> None:
    text = scenario_text(EXAMPLES["users"]).replace("  num_requests: 300\n", "")
    with pytest.raises(ScenarioError, match=r"workload.num_requests .*: needed with users"):
        build_table(load_scenario(write(tmp_path / "one.yaml", text)))


def test_users_are_not_for_traces() -> None:
    values = {"model": "m", "workload": {"trace": {"path": "x"}, "users": 3}}
    with pytest.raises(ScenarioError, match="users is for a preset or a generator"):
        parse_scenario(values)


def test_a_preset_takes_users_and_drift() -> None:
    base = {"model": "meta-llama/Llama-3.1-8B"}
    users = {"preset": "agentic-coding", "users": 5, "num_requests": 400}
    table = build_table(parse_scenario({**base, "workload": users}))
    assert table.after is not None
    assert (table.after < 0).sum() == 5
    drift = {"preset": "azure-conv", "drift": {"profile": "ragpulse"}, "num_requests": 400}
    assert len(build_table(parse_scenario({**base, "workload": drift}))) == 400


def lengths_file(path: Path) -> Path:
    rows = "".join(f"{100 * i},{1000 - i}\n" for i in range(1, 41))
    path.write_bytes(gzip.compress(f"input_tokens,output_tokens\n{rows}".encode()))
    return path


@pytest.mark.parametrize("paired", [True, False])
def test_lengths_come_from_a_file(paired: bool, tmp_path: Path) -> None:
    lengths_file(tmp_path / "lengths.csv.gz")
    text = (
        "model: meta-llama/Llama-3.1-8B\nworkload:\n  rate_per_s: 5\n  num_requests: 4000\n"
        f"  generator:\n    input_tokens: {{from_file: lengths.csv.gz}}\n"
        f"    output_tokens: {{from_file: lengths.csv.gz}}\n    paired: {str(paired).lower()}\n"
    )
    scenario = load_scenario(write(tmp_path / "one.yaml", text))
    table = build_table(scenario)
    assert set(table.prompt_tokens.tolist()) == set(range(100, 4100, 100))
    assert set(table.output_tokens.tolist()) == set(range(960, 1000))
    pairs = set(zip(table.prompt_tokens.tolist(), table.output_tokens.tolist(), strict=True))
    assert (len(pairs) == 40) == paired
    counts = np.unique(table.prompt_tokens, return_counts=True)[1]
    assert counts.max() < 1.5 * counts.mean()
    save_scenario(scenario, tmp_path / "saved.yaml")
    assert "from_file: lengths.csv.gz" in (tmp_path / "saved.yaml").read_text()


def test_lengths_may_come_from_a_trace_of_any_format(tmp_path: Path) -> None:
    path = SHARED / "data" / "traces" / "mooncake_conversation.jsonl.gz"
    if not path.exists():
        pytest.skip(f"the trace {path.name} (shared/data/traces) is not here")
    generator = {key: {"from_file": str(path)} for key in ("input_tokens", "output_tokens")}
    workload = {"generator": generator, "rate_per_s": 3, "num_requests": 20_000}
    table = build_table(parse_scenario({"model": "meta-llama/Llama-3.1-8B", "workload": workload}))
    assert np.median(table.prompt_tokens) == pytest.approx(6909, rel=0.05)
    assert table.output_tokens.mean() == pytest.approx(343, rel=0.03)


def test_a_file_without_rows_has_no_lengths(tmp_path: Path) -> None:
    write(tmp_path / "empty.csv", "input_tokens,output_tokens\n")
    empty = {"from_file": str(tmp_path / "empty.csv")}
    generator = {"input_tokens": empty, "output_tokens": {"fixed": 9}}
    workload = {"generator": generator, "rate_per_s": 3, "num_requests": 20}
    with pytest.raises(TraceError, match="there are no rows to draw lengths from"):
        build_table(parse_scenario({"model": "m", "workload": workload}))


@pytest.mark.parametrize("name", ["agents", "rag", "bursts"])
def test_shipped_scenarios_run(name: str) -> None:
    path = next(path for path in SHIPPED if path.stem == name)
    few = {
        "agents": ["workload.num_requests=150", "warmup_s=0"],
        "rag": ["workload.num_requests=300"],
        "bursts": ["workload.num_requests=300"],
    }
    result = simulate(load_scenario(path, [*few[name], "bands=false"]))
    assert result.summary["requests"]["finished"] > 20
    assert result.summary["requests"]["rejected"] == 0


@pytest.mark.parametrize("name", ["chat-long", "rag", "long-document", "agentic-coding"])
def test_a_cache_that_never_fills_hits_what_the_preset_claims(name: str) -> None:
    """Little load: what a conversation leaves is computed, and there, when it goes on."""
    spec = preset_spec(name, num_requests=600, requests_per_s=0.02)
    table = generate(spec, 0)
    assert table.chains is not None
    possible = np.minimum(matched_tokens(table.chains), table.prompt_tokens).sum()
    engine = EngineConfig(max_model_len=10**6, replica_blocks=10**8, async_scheduling=False)
    log = small_run(table, engine=engine, cost=AffineCost(base_s=1e-3, per_token_s=1e-7)).requests
    hits = np.frombuffer(log.cached_tokens, np.int64).sum()
    assert hits / table.prompt_tokens.sum() == pytest.approx(
        possible / table.prompt_tokens.sum(), rel=0.01
    )
