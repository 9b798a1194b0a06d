"""The device part runs from a bare checkout with standard library, numpy, torch and triton only."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from calibrate.measure.kernels import FAMILIES
from tests.properties.checkout import CHECKOUT

SOURCES = sorted((CHECKOUT / "calibrate" / "measure").rglob("*.py"))
ALLOWED = {"numpy", "torch", "triton"}

# Lets through the standard library, this package, and what torch, triton and numpy bring with them;
# any other import, wherever in the process it is made, fails.
BLOCKER = """
import sys

ALLOWED = {"numpy", "torch", "triton"}
BROUGHT = {"functorch", "torchgen", "intel_openmp", "mkl"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ALLOWED | BROUGHT:
            return None
        if top == "calibrate" and (name == top or name.startswith("calibrate.measure")):
            return None
        frame, importer = sys._getframe(1), ""
        while frame is not None:
            importer = frame.f_globals.get("__name__", "").partition(".")[0]
            if importer not in ("importlib", "_frozen_importlib", "_frozen_importlib_external"):
                break
            frame = frame.f_back
        if importer in ("calibrate", "__main__", "runpy"):
            raise ImportError(f"BLOCKED: {name} imported from {importer}")
        return None

sys.meta_path.insert(0, Blocker())
sys.argv[0] = "measure"
import runpy
runpy.run_module("calibrate.measure", run_name="__main__")
"""


def imports(source: Path) -> Iterator[str]:
    """Every module that a file imports anywhere in it, by its full name."""
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: imports are absolute"
            yield str(node.module)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_a_file_imports_nothing_else(source: Path) -> None:
    for name in imports(source):
        top = name.partition(".")[0]
        is_own = name == "calibrate.measure" or name.startswith("calibrate.measure.")
        assert is_own or top in ALLOWED or top in sys.stdlib_module_names, (
            f"{source.name} imports {name}"
        )


def test_importing_the_package_runs_nothing_else() -> None:
    """`calibrate` itself is imported first: it may import nothing."""
    assert list(imports(CHECKOUT / "calibrate" / "__init__.py")) == []
    assert list(imports(CHECKOUT / "calibrate" / "measure" / "__init__.py")) == []


def test_every_family_has_its_modules() -> None:
    package = "calibrate.measure.kernels"
    missing = {name for names in FAMILIES.values() for name in names} - {
        name for names in FAMILIES.values() for name in names if find_spec(f"{package}.{name}")
    }
    assert not missing


def blocked_run(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKER, *options],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_it_lists_and_measures_where_nothing_else_can_be_imported(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    listed = blocked_run("--list")
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == [*FAMILIES, "all"]
    out = tmp_path / "out.jsonl"
    measured = blocked_run("--device", "cpu", "--quick", "--families", "launch", "--out", str(out))
    assert measured.returncode == 0, measured.stderr
    kinds = [json.loads(line)["kind"] for line in out.read_text().splitlines()]
    assert kinds[0] == "machine"
    assert set(kinds[1:]) == {"timing"}


@pytest.mark.slow
def test_the_blocker_blocks() -> None:
    code = BLOCKER.partition("sys.argv[0]")[0] + "import pandas"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "BLOCKED: pandas" in done.stderr
