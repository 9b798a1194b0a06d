"""Runs Triton kernels of `calibrate.measure` through the interpreter, in a process of its own.

``python -m tests.measure_triton CASES``: JSON lines with a module and the fields of a case; prints
the relative error of each, a line.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

from importlib import import_module

from calibrate.measure.record import case_of


def main(path: str) -> None:
    """Print the errors."""
    with open(path) as file:
        for line in map(json.loads, file):
            module = import_module(f"calibrate.measure.kernels.{line['module']}")
            print(module.prepare(case_of(line), "cpu", 1).error())


if __name__ == "__main__":
    main(sys.argv[1])
