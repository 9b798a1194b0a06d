"""Run ``python -m calibrate.servers``."""

from __future__ import annotations

import sys

from calibrate.servers.cli import main

if __name__ == "__main__":
    sys.exit(main())
