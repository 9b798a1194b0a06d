"""Run Triton kernels of `calibrate.measure` in the interpreter, in a separate process.

``python -m tests.calibrate.measure.measure_triton CASES`` reads JSON lines with a module and the
fields of a case, and prints the relative error of each, one per line.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

from importlib import import_module
from typing import Any

import numpy as np
from triton.runtime import interpreter

from calibrate.measure.run import case_of

_patch_tensor = interpreter._patch_lang_tensor


def _patched(tensor: Any, scope: Any) -> None:
    """numpy from 2.4 on makes no number of an array of one, as Triton 3.6 does for loop bounds."""
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patched

_multiply = interpreter.InterpreterBuilder.create_fmul
_subtract = interpreter.InterpreterBuilder.create_fsub


def _multiplied(self: Any, left: Any, right: Any) -> Any:
    product = _multiply(self, left, right)
    product.factors = left, right
    return product


def _subtracted(self: Any, left: Any, right: Any) -> Any:
    """A product less a number is one operation on a GPU: the product is not rounded before."""
    factors = getattr(left, "factors", None)
    difference = _subtract(self, left, right)
    if factors is not None and left.data.dtype == np.float32:
        with np.errstate(all="ignore"):
            exact = np.multiply(*(factor.data.astype(np.float64) for factor in factors))
            difference.data = (exact - right.data.astype(np.float64)).astype(np.float32)
    return difference


interpreter.InterpreterBuilder.create_fmul = _multiplied
interpreter.InterpreterBuilder.create_fsub = _subtracted


def main(path: str) -> None:
    """Print the error of each case."""
    with open(path) as file:
        for line in map(json.loads, file):
            module = import_module(f"calibrate.measure.kernels.{line['module']}")
            print(module.prepare(case_of(line), "cpu", 1).error())


if __name__ == "__main__":
    main(sys.argv[1])
