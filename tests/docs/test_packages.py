"""The installed packages are those of the tree, and every listed policy can be used."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from policies import ADMISSIONS, AUTOSCALERS, EVICTIONS, ROUTERS, SCHEDULERS
from scenarios.build.plugins import load_attribute
from scenarios.commands import app
from tests.properties.checkout import CHECKOUT

PACKAGES = ("sim", "costmodels", "workloads", "policies", "calibrate", "scenarios", "reports")


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_imported_from_the_checkout(package: str) -> None:
    file = importlib.import_module(package).__file__
    assert file is not None
    assert Path(file).resolve() == CHECKOUT / package / "__init__.py", (
        f"`import {package}` found another distribution's package of that name, {file}; install "
        "fleetcast in its own virtual environment: make clean && make test"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    assert (CHECKOUT / package / "py.typed").is_file()


def test_every_folder_with_modules_is_a_known_package() -> None:
    """A new package must be added to pyproject.toml, and to the tests above."""
    found = {path.parent.name for path in CHECKOUT.glob("*/__init__.py")}
    assert found == set(PACKAGES)


def test_every_folder_of_modules_is_a_package() -> None:
    """A folder without ``__init__.py`` runs from a checkout, but is not found for a wheel."""
    files = (file for package in PACKAGES for file in (CHECKOUT / package).rglob("*.py"))
    assert [file for file in files if not (file.parent / "__init__.py").exists()] == []


def test_every_data_file_is_packaged() -> None:
    """Data lies beside the modules of a package, where ``package-data`` finds it."""
    patterns = ("*.yaml", "*.csv", "*.j2")
    files = (f for p in PACKAGES for one in patterns for f in (CHECKOUT / p).rglob(one))
    apart = {"plans", "sweeps", "measured", "published"}
    lost = [f for f in files if not (f.parent / "__init__.py").exists()]
    assert [file for file in lost if not apart & set(file.parts)] == []


def test_no_third_party_trace_is_in_the_repository() -> None:
    """Traces have licences and sizes of their own; tests read them from outside, or write some."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=CHECKOUT,
            capture_output=True,
            check=True,
        ).stdout.split(b"\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    names = [os.fsdecode(name) for name in listed if name]
    suspects = [name for name in names if name.endswith((".jsonl", ".csv", ".gz", ".parquet"))]
    large = [name for name in suspects if (CHECKOUT / name).stat().st_size > 50_000]
    assert not large


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_loads(name: str) -> None:
    scheduler = load_attribute(SCHEDULERS[name])
    assert callable(scheduler() if isinstance(scheduler, type) else scheduler)
    assert inspect.getdoc(scheduler)


@pytest.mark.parametrize("name", ROUTERS)
def test_router_loads(name: str) -> None:
    router = load_attribute(ROUTERS[name])
    assert inspect.getdoc(router)
    assert callable(router.choose)
    assert callable(router.publish)


@pytest.mark.parametrize("name", EVICTIONS)
def test_eviction_policy_is_described(name: str) -> None:
    assert inspect.getdoc(load_attribute(EVICTIONS[name]))


def test_every_policy_is_listed() -> None:
    lines = CliRunner().invoke(app, ["list", "policies"]).output.splitlines()
    listed = {tuple(line.split()[:2]) for line in lines}
    families = {
        "scheduler": SCHEDULERS,
        "router": ROUTERS,
        "admission": ADMISSIONS,
        "autoscaler": AUTOSCALERS,
        "eviction": EVICTIONS,
    }
    assert listed == {(family, name) for family, names in families.items() for name in names}
