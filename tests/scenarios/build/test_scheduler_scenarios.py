"""Schedulers with options, swap preemption and several answers per request, from a scenario's
YAML on."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.files.dump import dump_scenario, save_scenario
from scenarios.files.load import load_scenario, parse_scenario
from scenarios.files.yaml_text import parse_yaml
from scenarios.run.simulate import simulate
from sim.errors import FleetcastError
from tests.properties.scenarios import small, write

pytestmark = pytest.mark.usefixtures("trusts_tmp_path")

CAPPED = """
from sim.engine.step import UNTIL_CHANGE

class Capped:
    \"\"\"At most so many at once.\"\"\"

    def __init__(self, *, most: int = 4):
        self.most = most

    def attach(self, view):
        assert view.config.running_seq_limit > self.most

    def __call__(self, view):
        batch = view.new_batch()
        batch.add_running()
        while view.waiting and len(view.running) < self.most:
            if not batch.admit(view.waiting.first()):
                break
        return batch.plan(repeat=UNTIL_CHANGE)


def plain(view, *, most: int = 4):
    return Capped(most=most)(view)
"""


@pytest.mark.parametrize("attribute", ["Capped", "plain"])
def test_a_policy_of_ones_own_has_options(tmp_path: Path, attribute: str) -> None:
    write(tmp_path / "mine.py", CAPPED)
    scheduler = {"name": f"mine:{attribute}", "most": 2}
    scenario = small(rate_per_s=500) | {"engine": {"scheduler": scheduler}}
    path = tmp_path / "scenario.yaml"
    path.write_text(dump_scenario(parse_scenario(scenario)))
    result = simulate(load_scenario(path))
    assert result.steps.running.max() == 2
    assert result.summary["conditions"]["scheduler"] == f"mine.py:{attribute} (most 2)"
    save_scenario(result.scenario, tmp_path / "saved.yaml")
    again = load_scenario(tmp_path / "saved.yaml", ["engine.scheduler.most=3"])
    assert simulate(again).steps.running.max() == 3
    with pytest.raises(FleetcastError, match="has no option 'least'"):
        simulate(load_scenario(path, ["engine.scheduler.least=3"]))


@pytest.mark.parametrize(
    ("value", "message"),
    [("{most: 3}", "engine.scheduler: needs a name"), ("7", "engine.scheduler: must be a name")],
)
def test_a_scheduler_without_a_name_is_refused(value: str, message: str) -> None:
    scheduler, _ = parse_yaml(value, "here")
    with pytest.raises(FleetcastError, match=message):
        parse_scenario(small() | {"engine": {"scheduler": scheduler}})


def test_swapping_is_said_and_its_time_is_posted() -> None:
    lengths = {"input_tokens": {"fixed": 100}, "output_tokens": {"fixed": 200}}
    kv = {"num_gpu_blocks": 60, "enable_prefix_caching": False}
    crowded = small(rate_per_s=500, generator=lengths) | {
        "engine": {"preemption_mode": "swap"},
        "kv": kv,
    }
    swapped = simulate(parse_scenario(crowded))
    assert swapped.log.requests.swapped
    assert any("move to the host" in note for note in swapped.summary["conditions"]["notes"])
    assert swapped.summary["e2e_accounts_s"]["preemption_swap"] > 0
    assert swapped.summary["e2e_accounts_s"]["preemption_recompute"] == 0
    crowded["kv"] = kv | {"swap_space_gib": 0.01}
    full = simulate(parse_scenario(crowded))
    assert any("swap space was full" in w["text"] for w in full.summary["warnings"])


def test_several_answers_count_as_output() -> None:
    one, four = (
        simulate(parse_scenario(small() | {"workload": small()["workload"] | {"n": n}}))
        for n in (1, 4)
    )
    ratio = four.log.table.all_output_tokens.sum() / one.log.table.all_output_tokens.sum()
    assert ratio == 4
    logits = (four.steps.logits * four.steps.steps).sum()
    assert logits == (4 * four.log.table.output_tokens - 3).sum()
    assert "4 answers each" in four.summary["conditions"]["workload"]
