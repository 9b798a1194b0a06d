"""Where the checkout and the shared data lie."""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = next(
    folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists()
)


SHARED = Path(os.environ.get("FLEETCAST_SHARED", CHECKOUT.parent / "shared"))
