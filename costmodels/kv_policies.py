"""A model served with part of its keys and values dropped: its full-attention layers, changed.

Each function takes a model and gives one whose grouped-query layers store and read less. What it
does to answers is not modelled: it is a quality effect, to be reported with a source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from costmodels.layers.evicting import Evicting, pyramid_budgets
from costmodels.layers.gqa import Gqa
from costmodels.layers.parts import Mixer
from costmodels.layers.sliding import SlidingWindow
from costmodels.model_spec import LayerGroup, ModelSpec
from sim.errors import ScenarioError


def streaming_llm(model: ModelSpec, window: int, sink_tokens: int = 4) -> ModelSpec:
    """The first ``sink_tokens`` and the newest ``window`` tokens (arXiv 2309.17453)."""
    return _changed(
        model, lambda gqa, _: SlidingWindow(gqa=gqa, window=window, sink_tokens=sink_tokens)
    )


def h2o(model: ModelSpec, budget_tokens: int) -> ModelSpec:
    """At most ``budget_tokens``, half of them heavy hitters (2306.14048)."""
    return _changed(model, lambda gqa, _: Evicting(gqa=gqa, budget_tokens=budget_tokens))


def snapkv(model: ModelSpec, budget_tokens: int) -> ModelSpec:
    """``budget_tokens`` of the prompt, and all that is generated (2404.14469)."""
    return _changed(
        model,
        lambda gqa, _: Evicting(gqa=gqa, budget_tokens=budget_tokens, keeps_generated=True),
    )


def pyramid_kv(model: ModelSpec, mean_budget_tokens: int) -> ModelSpec:
    """As SnapKV, with budgets that fall from the first layer to the last (2406.02069)."""
    count = sum(group.count for group in model.layers if isinstance(group.mixer, Gqa))
    budgets = pyramid_budgets(mean_budget_tokens, count)
    return _changed(
        model,
        lambda gqa, layer: Evicting(gqa=gqa, budget_tokens=budgets[layer], keeps_generated=True),
    )


def _changed(model: ModelSpec, change: Callable[[Gqa, int], Mixer]) -> ModelSpec:
    """``model`` with each grouped-query layer changed, given its place among them."""
    layers: list[LayerGroup] = []
    place = 0
    for group in model.layers:
        if not isinstance(group.mixer, Gqa):
            layers.append(group)
            continue
        for _ in range(group.count):
            layers.append(replace(group, count=1, mixer=change(group.mixer, place)))
            place += 1
    if not place:
        raise ScenarioError(f"{model.name} has no full grouped-query attention to drop tokens from")
    return replace(model, layers=_merged(layers))


def _merged(layers: Iterable[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Equal layers together again."""
    counts: dict[LayerGroup, int] = {}
    for layer in layers:
        one = replace(layer, count=1)
        counts[one] = counts.get(one, 0) + layer.count
    return tuple(replace(layer, count=count) for layer, count in counts.items())
