"""Which models the step cost and the memory plan cover: the one place that says no."""

from __future__ import annotations

from costmodels.model_spec import ModelSpec
from sim.errors import ScenarioError


def is_priced(model: ModelSpec) -> bool:
    """Whether a step of ``model`` can be priced: all but budgets that are of the prompt alone."""
    return not model.prompt_clip_tokens


def refuse_unpriced(model: ModelSpec) -> None:
    """Raise `ScenarioError` for a model with layers that a step cannot be priced with."""
    if is_priced(model):
        return
    layers = sum(
        count
        for mixer, count in model.mixers
        if any(term.keeps_generated for term in mixer.attention(model.precision).decode)
    )
    raise ScenarioError(
        f"{model.name} cannot be priced: {layers} of its {model.num_layers} layers keep a budget "
        "of each prompt and all that is generated (SnapKV, PyramidKV); an engine sums contexts, "
        "not prompts. A budget of the whole context (H2O), or a window, is priced"
    )
