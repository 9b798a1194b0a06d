"""``python -m calibrate.cpu_loop [--quick]``: the loop beside its prediction."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from calibrate.cpu_loop.run import compare
from calibrate.cpu_loop.text import comparison_lines


def main() -> None:
    """Measure, price and print."""
    with TemporaryDirectory() as folder:
        found = compare(Path(folder), quick="--quick" in sys.argv)
    print("\n".join(comparison_lines(found)))


if __name__ == "__main__":
    main()
