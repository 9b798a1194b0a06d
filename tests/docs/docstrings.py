"""Check that every docstring reads as a sentence: ``python -m tests.docs.docstrings``.

A docstring of a function or class has at least four words and does not begin as a fragment.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

PACKAGES = (
    "sim",
    "costmodels",
    "workloads",
    "policies",
    "calibrate",
    "scenarios",
    "reports",
    "tests",
)
FRAGMENT = re.compile(r"(Of|As of|The same|So many|Nothing)\b")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def faults(root: Path) -> list[str]:
    """Return ``file:line: what is wrong`` for each docstring below ``root`` that is no sentence."""
    found = []
    for path in sorted(file for name in PACKAGES for file in (root / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, (*DEFINITIONS, ast.Module)) else None
            if text is None:
                continue
            place = f"{path.relative_to(root)}:{getattr(node, 'lineno', 1)}"
            if FRAGMENT.match(text):
                found.append(f"{place}: begins as a fragment: {text.splitlines()[0]}")
            elif isinstance(node, DEFINITIONS) and len(text.split()) < 4:
                found.append(f"{place}: fewer than four words: {text}")
    return found


if __name__ == "__main__":
    sys.exit("\n".join(faults(Path(__file__).resolve().parents[2])) or None)
