"""Where the checkout and the shared data lie."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHECKOUT = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists()
)
SHARED = Path(os.environ.get("FLEETCAST_SHARED", CHECKOUT.parent / "shared"))


def module_output(module: str, *arguments: str) -> str:
    """Run ``python -m module`` in the checkout and return what it printed; it must succeed."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
