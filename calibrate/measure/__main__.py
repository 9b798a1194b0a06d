"""Run ``python -m calibrate.measure``."""

from __future__ import annotations

import sys

from calibrate.measure.cli import main

if __name__ == "__main__":
    sys.exit(main())
