"""Policies of users are found and used, and named if they are at fault."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from scenarios.files.dump import dump_scenario
from scenarios.files.load import load_scenario
from scenarios.run.simulate import simulate
from sim.errors import PolicyError, ScenarioError
from tests.properties.scenarios import small, write

pytestmark = pytest.mark.usefixtures("trusts_tmp_path")


@pytest.fixture(autouse=True)
def _own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


_FAULTY = {
    "raises_on_import": ("1 / 0\n", "ZeroDivisionError: division by zero (mine.py, line 1)"),
    "exits_on_import": ("raise SystemExit(3)\n", "SystemExit: 3 (mine.py, line 1)"),
    "bad_syntax": ("def f(:\n", "SyntaxError: invalid syntax (mine.py, line 1)"),
    "lacks_it": ("def polisy(view): ...\n", "has no 'policy'; did you mean 'polisy'?"),
    "not_callable": ("policy = 3\n", "scheduler mine.py:policy is of type int; it must be"),
    "returns_none": ("def policy(view): ...\n", "returned nothing (None) at 0.0"),
    "returns_a_list": ("def policy(view): return [1]\n", "returned a list ([1]) at"),
    "raises": (
        "def policy(view):\n    x = {}\n    return x['a']\n",
        "scheduler mine.py:policy raised KeyError: 'a' (mine.py, line 3)",
    ),
    "wrong_arguments": ("def policy(): ...\n", "TypeError: policy() takes 0 positional arguments"),
    "needs_arguments": (
        "class policy:\n    def __init__(self, a): ...\n",
        "making scheduler mine.py:policy raised TypeError",
    ),
    "instance_not_callable": ("class policy: ...\n", "is of type policy; it must be a function"),
    "never_plans": ("def policy(view): return view.new_batch().plan()\n", "planned nothing"),
    "bad_order": (
        "class policy:\n    def waiting_order(self, r): return r.nope\n"
        "    def __call__(self, view): ...\n",
        "waiting_order of mine.py:policy raised AttributeError",
    ),
}


@pytest.mark.parametrize("name", _FAULTY)
def test_faulty_scheduler(tmp_path: Path, name: str) -> None:
    source, words = _FAULTY[name]
    write(tmp_path / "mine.py", source)
    path = write(tmp_path / "s.yaml", small() | {"engine": {"scheduler": "mine:policy"}})
    with pytest.raises((ScenarioError, PolicyError)) as caught:
        simulate(load_scenario(path))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("router = 3\n", "router mine.py:router is of type int"),
        ("def router(): ...\n", "making router mine.py:router for 2 replicas raised TypeError"),
        ("class router:\n    def __init__(self, n): ...\n", "no method choose and no publish"),
        ("{}return 2", "router mine.py:router chose a int (2) for request 0; it must return"),
        ("{}return -1", "chose a int (-1)"),
        ("{}return None", "chose nothing (None)"),
        ("{}return 0.5", "chose a float (0.5)"),
        ("{}return [][0]", "choose of router mine.py:router raised IndexError"),
    ],
)
def test_faulty_router(tmp_path: Path, source: str, words: str) -> None:
    head = (
        "class router:\n    def __init__(self, n): ...\n    def publish(self, replica, load): ...\n"
        "    def choose(self, request): "
    )
    write(tmp_path / "mine.py", source.replace("{}", head))
    pool = {"replicas": 2, "router": "mine:router"}
    path = write(tmp_path / "s.yaml", small() | {"pool": pool})
    with pytest.raises(PolicyError) as caught:
        simulate(load_scenario(path))
    assert words in str(caught.value)


def test_own_policies_may_share_a_module_name(tmp_path: Path) -> None:
    """Each scenario gets the module beside it, in one process too."""
    running = []
    for limit in (1, 2):
        folder = tmp_path / str(limit)
        folder.mkdir()
        write(
            folder / "mine.py",
            "from settings import LIMIT\n"
            "def policy(view):\n"
            "    batch = view.new_batch()\n"
            "    batch.add_running()\n"
            "    for request in list(view.waiting)[: LIMIT - len(view.running)]:\n"
            "        batch.admit(request)\n"
            "    return batch.plan()\n".replace("LIMIT -", f"{limit} -"),
        )
        write(folder / "settings.py", f"LIMIT = {limit}\n")
        values = small(rate_per_s=100) | {"engine": {"scheduler": "mine:policy"}}
        result = simulate(load_scenario(write(folder / "s.yaml", values)))
        running.append(result.figure("running", "max"))
    assert running == [1, 2]


def test_own_priority_scheduler_orders_the_queue(tmp_path: Path) -> None:
    write(
        tmp_path / "mine.py",
        "from policies.fcfs import fcfs\n"
        "class Newest:\n"
        "    def waiting_order(self, request): return -request.arrival_ns\n"
        "    def __call__(self, view): return fcfs(view)\n",
    )
    engine = {"scheduler": "mine:Newest", "max_num_seqs": 1}
    values = small(rate_per_s=1000) | {"engine": engine}
    result = simulate(load_scenario(write(tmp_path / "s.yaml", values)))
    done = (result.requests["arrival_s"] + result.requests["e2e_s"]).to_numpy()
    assert (np.diff(done[1:]) < 0).all()  # all but the first came while it ran


@pytest.mark.parametrize("is_of_pools", [False, True])
def test_own_policies_lie_beside_the_scenario(tmp_path: Path, is_of_pools: bool) -> None:
    """Scheduler, eviction and router, of the scenario or of its pools."""
    write(
        tmp_path / "mine.py",
        "from policies.fcfs import fcfs as scheduler\n"
        "from policies.routers.round_robin import RoundRobin as Router\n"
        "def eviction(content): return content.born\n",
    )
    of_pool = {"engine": {"scheduler": "mine:scheduler"}, "kv": {"eviction": "mine:eviction"}}
    values = small() | of_pool | {"pool": {"router": {"name": "mine:Router"}}}
    if is_of_pools:
        pools = [{"name": "p", **of_pool, "router": "mine:Router"}]
        values = small() | {"pools": pools}
    result = simulate(load_scenario(write(tmp_path / "s.yaml", values)))
    text = dump_scenario(result.scenario)
    for name in ("scheduler", "eviction", "Router"):
        assert f"{tmp_path / 'mine.py'}:{name}" in text
