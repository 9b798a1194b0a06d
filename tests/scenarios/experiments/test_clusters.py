"""Experiments on real local clusters of several workers give equal results, even if workers die."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from scenarios.commands import app
from scenarios.experiments.points import run_points, seeded_points, simulated
from scenarios.files.load import parse_scenario
from scenarios.run.execution import WorkerLostError
from scenarios.run.execution.workers import Workers, spread
from scenarios.run.result import RunResult
from sim.errors import ScenarioError
from tests.properties.checkout import CHECKOUT
from tests.properties.scenarios import azure_trace
from tests.scenarios.experiments.plan.samples import PLAN
from tests.scenarios.experiments.sweep.samples import SCENARIO, deadly_sweep, run, write_sweep_file
from tests.scenarios.run.worker_functions import die_always, die_once, refuse_three, square

pytestmark = [
    pytest.mark.slow,
    # Of the clusters' own: sockets and processes they leave to the interpreter's end.
    pytest.mark.filterwarnings("ignore"),
]
# On the loopback alone, and so without the token that Ray would leave in the user's home.
os.environ["RAY_AUTH_MODE"] = "disabled"
NUMBERS = list(range(12))
SQUARES = [(n, n * n) for n in NUMBERS]
WORKERS = 3
SWEEP: dict[str, Any] = {
    "scenario": {**SCENARIO, "workload": {"preset": "azure-conv", "num_requests": 300}},
    "axes": {
        "workload.rate_per_s": [4, 8, 12],
        "model": ["llama-3.1-8b", "llama-3.1-405b"],  # the second does not fit: a failing point
    },
    "replications": 2,
}


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A Ray cluster of a head and two nodes, a core each, behind its client server."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'fleetcast[ray]'")
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    head, clients = _free_port(), _free_port()
    ports = [f"--port={head}", f"--ray-client-server-port={clients}"]
    workers = ["--node-ip-address=127.0.0.1", "--min-worker-port=0", "--max-worker-port=0"]
    nodes = [["--head", "--include-dashboard=false", *ports]]
    nodes += [[f"--address=127.0.0.1:{head}"]] * (WORKERS - 1)
    with ExitStack() as stack:
        for node in nodes:
            process = subprocess.Popen(
                [*start, *workers, *node],
                env=environment,
                cwd=CHECKOUT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait, timeout=30)
            stack.callback(process.terminate)
            _wait_for(clients)
        yield f"ray://127.0.0.1:{clients}"


@pytest.fixture(scope="module")
def dask_address() -> Iterator[str]:
    """A Dask scheduler and three workers, each a process of one thread."""
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install 'fleetcast[dask]'"
    )
    os.environ["PYTHONPATH"] = str(CHECKOUT)
    with distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(params=["ray_address", "dask_address"])
def cluster(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


def test_every_item_comes_back_once(cluster: str) -> None:
    assert sorted(spread(square, NUMBERS, cluster=cluster)) == SQUARES


def test_what_a_function_raises_is_raised(cluster: str) -> None:
    with pytest.raises(ValueError, match="three"):
        list(spread(refuse_three, NUMBERS, cluster=cluster))


def test_one_connection_serves_many_batches(cluster: str) -> None:
    with Workers(cluster=cluster) as workers:
        for _ in range(3):
            assert sorted(workers.spread(square, NUMBERS)) == SQUARES


def test_relative_paths_mean_the_same_on_a_worker(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    azure_trace(Path("trace.csv"), 8)
    scenario = parse_scenario(
        {"model": "llama-3.1-8b", "workload": {"trace": {"path": "trace.csv"}}}
    )
    points = seeded_points(scenario, range(2), {})
    run = partial(simulated, reduce=mean_ttft_s)
    with Workers(cluster=cluster) as there:
        found = [run_points(points, run, where, memo={}) for where in (Workers(jobs=1), there)]
    assert found[0] == found[1]


def mean_ttft_s(result: RunResult) -> float | None:
    return result.figure("ttft", "mean")


COMMANDS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "whatif": (
        SCENARIO,
        ["--set", "engine.tensor_parallel_size=2", "--set", "kv.cache_dtype=fp8"],
    ),
    "capacity": (
        {**SCENARIO, "slo": {"ttft_s": 0.3, "tpot_s": 0.03}},
        ["--attainment=0.9", "--precision=0.2", "--num-requests=100", "--for-rate=60", "--check"],
    ),
    "plan": (PLAN, []),
    "sweep": (SWEEP, []),
}
"""Command -> its input file, and options beside that."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_gives_the_same_bytes_as_one_process(
    command: str, cluster: str, tmp_path: Path
) -> None:
    values, options = COMMANDS[command]
    file = tmp_path / "input.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")

    def run_it(*where: str) -> tuple[str, dict[str, Any]]:
        """Return what is printed and the content of every file, without times on the wall."""
        out = tmp_path / "out"
        arguments = [command, str(file), *options, *where, "--format", "json", "--out", str(out)]
        said = CliRunner().invoke(app, arguments)
        assert said.exit_code == 0, said.output
        files = {str(path.relative_to(out)): _timeless(path) for path in out.rglob("*.*")}
        out.rename(tmp_path / where[0])
        return _without_times(said.stdout), files

    here, there = run_it("--jobs", "1"), run_it("--cluster", cluster)
    assert len(here[1]) >= 3
    assert there == here


def _timeless(path: Path) -> Any:
    if path.suffix == ".parquet":
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":  # results in order of completion
        return sorted(_without_times(line) for line in text.splitlines())
    return _without_times(text)


def _without_times(text: str) -> str:
    text = re.sub(r'"(wall_s|core_s)": [\d.e-]+', r'"\1": 0', text)
    return re.sub(r"\bin [\d.]+ (s|min)\b", "in no time", text)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("dask", "distributed")])
def test_a_cluster_of_ones_own_comes_and_goes(name: str, package: str, tmp_path: Path) -> None:
    """In a process of its own: Ray is one a process."""
    pytest.importorskip(package, reason=f"not installed: pip install 'fleetcast[{name}]'")
    file = write_sweep_file(tmp_path, SWEEP)
    command = [sys.executable, "-m", "scenarios.commands", "sweep", str(file), "--jobs", "2"]
    subprocess.run(
        [*command, "--cluster", name, "--out", str(tmp_path / "there")],
        cwd=CHECKOUT,
        env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
        | {"PYTHONPATH": str(CHECKOUT)},
        check=True,
        timeout=120,
    )
    run(file, tmp_path / "here")
    tables = [(tmp_path / where / "sweep.parquet").read_bytes() for where in ("here", "there")]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("scheme", ["ray", "tcp"])
def test_a_cluster_that_does_not_answer_is_said_so(scheme: str) -> None:
    package = "ray" if scheme == "ray" else "distributed"
    pytest.importorskip(package, reason=f"{package} is not installed")
    address = f"{scheme}://127.0.0.1:{_free_port()}"
    with pytest.raises(ScenarioError, match=f"--cluster {address}: no .* answers"):
        list(spread(square, NUMBERS, cluster=address))


# Last, because a machine under load may not start the workers again that these kill.


def test_a_worker_that_dies_loses_nothing(cluster: str, tmp_path: Path) -> None:
    done = spread(partial(die_once, folder=str(tmp_path)), NUMBERS, cluster=cluster)
    assert sorted(done) == SQUARES
    assert (tmp_path / "died").exists()


def test_an_item_that_kills_every_worker_is_told_apart(cluster: str) -> None:
    done = dict(spread(die_always, NUMBERS, cluster=cluster))
    assert isinstance(done.pop(3), WorkerLostError)
    assert sorted(done.items()) == [pair for pair in SQUARES if pair[0] != 3]


def test_a_worker_killed_in_the_middle_of_a_sweep_loses_nothing(
    cluster: str, tmp_path: Path
) -> None:
    file, mark = deadly_sweep(tmp_path)
    table = run(file, tmp_path / "there", cluster=cluster)
    assert mark.exists()  # it was killed
    assert set(table["status"]) == {"done"}
    run(file, tmp_path / "here")
    tables = [(tmp_path / name / "sweep.parquet").read_bytes() for name in ("here", "there")]
    assert tables[0] == tables[1]


def _wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"no Ray client server on port {port} in 30 s")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
