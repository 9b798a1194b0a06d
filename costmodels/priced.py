"""Which models the step cost and the memory plan cover: the one place that says no."""

from __future__ import annotations

from costmodels.model_spec import ModelSpec
from sim.errors import ScenarioError

# A step is priced from one sum of contexts. Kinds whose reads are clipped, or whose state does not
# grow, need sums and blocks that the engine does not keep yet.
_PRICED = ("gqa",)


def is_priced(model: ModelSpec) -> bool:
    """Whether a step of ``model`` can be priced."""
    return not model.clip_tokens and all(mixer.kind in _PRICED for mixer, _ in model.mixers)


def refuse_unpriced(model: ModelSpec) -> None:
    """Raise `ScenarioError` for a model with layers that a step cannot be priced with yet."""
    kinds = [(mixer.kind, count) for mixer, count in model.mixers if mixer.kind not in _PRICED]
    if kinds:
        layers = ", ".join(f"{count} {kind}" for kind, count in kinds)
        raise ScenarioError(
            f"{model.name} cannot be priced yet: of its {model.num_layers} layers are {layers}; "
            "only grouped-query attention over the whole context (gqa) is priced; what is known of "
            "its parameters and state: fleetcast list models"
        )
    if model.clip_tokens:
        raise ScenarioError(
            f"{model.name}: a {model.kv_cache_dtype} KV cache keeps its newest tokens in 16 bits, "
            "which cannot be priced yet; use fp8 or auto"
        )
