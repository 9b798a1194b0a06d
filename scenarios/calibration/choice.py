"""The sources of kernel times, as the command line names them."""

from __future__ import annotations

from costmodels.operators.sources import Choice
from scenarios.yaml_text import parse_yaml
from sim.errors import ScenarioError


def parse_operators(text: str) -> Choice:
    """``--operators``: one source, or ``{family: source, ...}``. Raises `ScenarioError`."""
    if not text.lstrip().startswith("{"):
        return text
    values, _ = parse_yaml(text, "--operators")
    if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
        raise ScenarioError(f"--operators {text}: write it as {{family: source, ...}}")
    return {str(family): source for family, source in values.items()}
