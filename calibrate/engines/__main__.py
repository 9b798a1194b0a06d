"""Run ``python -m calibrate.engines``."""

from __future__ import annotations

import sys

from calibrate.engines.cli import main

if __name__ == "__main__":
    sys.exit(main())
