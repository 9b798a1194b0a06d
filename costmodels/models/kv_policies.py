"""A model served with part of its keys and values dropped: its full-attention layers are changed.

Each function takes a model and returns one whose grouped-query layers store, or read, less. The
effect on answers is not modeled: it is a quality effect, to be reported with a source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from costmodels.models.layers.block_sparse import BlockSparse
from costmodels.models.layers.bounded import Evicting, PromptBudget, SlidingWindow, pyramid_budgets
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.parts import Mixer
from costmodels.models.spec import ModelSpec
from sim.errors import ScenarioError


def streaming_llm(model: ModelSpec, window: int, sink_tokens: int = 4) -> ModelSpec:
    """Keep the first ``sink_tokens`` and the newest ``window`` tokens (arXiv 2309.17453)."""
    return _changed(
        model, lambda gqa: SlidingWindow(gqa=gqa, window=window, sink_tokens=sink_tokens)
    )


def h2o(model: ModelSpec, budget_tokens: int) -> ModelSpec:
    """Keep at most ``budget_tokens``, half of them heavy hitters (2306.14048)."""
    return _changed(model, lambda gqa: Evicting(gqa=gqa, budget_tokens=budget_tokens))


def snapkv(model: ModelSpec, budget_tokens: int, observation_tokens: int = 32) -> ModelSpec:
    """Keep ``budget_tokens`` of the prompt, and all generated tokens (2404.14469)."""
    return _budgets(model, (budget_tokens,), observation_tokens)


def pyramid_kv(
    model: ModelSpec, mean_budget_tokens: int, observation_tokens: int = 32
) -> ModelSpec:
    """Keep tokens as in SnapKV, with budgets that fall from the first layer to the last
    (2406.02069)."""
    count = sum(group.count for group in model.layers if isinstance(group.mixer, Gqa))
    budgets = pyramid_budgets(mean_budget_tokens, max(1, count))
    return _budgets(model, budgets, observation_tokens)


def quest(model: ModelSpec, budget_tokens: int, page_tokens: int = 16) -> ModelSpec:
    """Keep everything stored, and read the pages of ``budget_tokens`` (2406.10774).

    Raises `ScenarioError` if the budget is not whole pages.
    """
    if budget_tokens % page_tokens:
        raise ScenarioError(
            f"a budget of {budget_tokens} tokens is not whole pages of {page_tokens}; "
            f"{-(-budget_tokens // page_tokens) * page_tokens} would be"
        )
    pages = budget_tokens // page_tokens
    return _changed(
        model, lambda gqa: BlockSparse(gqa=gqa, block_tokens=page_tokens, topk_blocks=pages)
    )


def _budgets(model: ModelSpec, budgets: tuple[int, ...], observation_tokens: int) -> ModelSpec:
    return _changed(
        model,
        lambda gqa: PromptBudget(gqa=gqa, budgets=budgets, observation_tokens=observation_tokens),
    )


def _changed(model: ModelSpec, change: Callable[[Gqa], Mixer]) -> ModelSpec:
    """Return ``model`` with each grouped-query layer changed."""
    layers = tuple(
        replace(group, mixer=change(group.mixer)) if isinstance(group.mixer, Gqa) else group
        for group in model.layers
    )
    if layers == model.layers:
        raise ScenarioError(f"{model.name} has no full grouped-query attention to drop tokens from")
    return replace(model, layers=layers)
