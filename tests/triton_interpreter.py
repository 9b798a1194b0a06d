"""Triton's interpreter, which runs kernels without a GPU; import it before any kernel.

float32 and float16 only: it multiplies matrices of bfloat16 wrongly.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patched(tensor: Any, scope: Any) -> None:
    """numpy 2.4 makes no number of an array of one, which Triton 3.6 has for a loop's bounds."""
    _patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patched
