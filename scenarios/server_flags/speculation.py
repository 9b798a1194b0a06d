"""Read the drafting that a command asks for into a section of speculation."""

from __future__ import annotations

import ast
from typing import Any

from scenarios.server_flags.values import NotPriced, Settings, json_object

_EAGLE3_VOCABULARY = 32_000
"""The draft_vocab_size in the configs of published EAGLE-3 drafters."""
_VLLM = {
    "draft_model": "draft_model",
    "eagle": "eagle",
    "eagle3": "eagle",
    "medusa": "medusa",
    "mtp": "mtp",
    "ngram": "ngram",
    "ngram_gpu": "ngram",
    "[ngram]": "ngram",
    "dflash": "dflash",
}
_BY_NAME = (("eagle3", "eagle3"), ("eagle", "eagle"), ("medusa", "medusa"), ("dflash", "dflash"))
_SGLANG = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "mtp",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
    "DFLASH": "dflash",
}


def vllm_speculation(text: str) -> dict[str, Any]:
    """Read vLLM's ``--speculative-config`` into a section of speculation."""
    config = json_object(text)
    model = config.get("model")
    method = config.get("method") or _method_of(model)
    tokens = config.get("num_speculative_tokens")
    found = _named(method, model, tokens)
    limit = config.get("disable_by_batch_size")
    if isinstance(limit, int) and limit > 1:
        found["drafts_by_seqs"] = {1: tokens or 1, limit: 0}
    tree = config.get("speculative_token_tree")
    if tree and found["method"] == "eagle":
        paths = [list(path) for path in ast.literal_eval(str(tree))]
        is_chain = all(set(path) == {0} for path in paths)
        if not is_chain:
            found |= {"tree": paths, "num_speculative_tokens": len(paths)}
    return found


def vllm_method(text: str, settings: Settings) -> dict[str, Any]:
    """Read vLLM's ``--spec-method``, with the model and the tokens of the flags beside it."""
    tokens = settings.get("--spec-tokens")
    return _named(text, settings.get("--spec-model"), None if tokens is None else int(tokens))


def sglang_speculation(text: str, settings: Settings) -> dict[str, Any]:
    """Read SGLang's ``--speculative-algorithm``, with the numbers of the flags beside it.

    ``num_draft_tokens`` includes the target's own token; a top-k above 1 drafts a tree.
    """
    method = _SGLANG.get(text.upper())
    if method is None:
        raise NotPriced(f"drafting by {text} is not modelled")
    drafted = settings.get("--speculative-num-draft-tokens")
    steps = settings.get("--speculative-num-steps")
    block = settings.get("--speculative-dflash-block-size")
    tokens = None
    if method == "dflash" and block is not None:
        tokens = int(block) - 1
    elif drafted is not None:
        tokens = int(drafted) - 1
    elif steps is not None:
        tokens = int(steps)
    drafter = settings.get("--speculative-draft-model-path")
    if method == "eagle" and _is_own(drafter, settings):
        method = "mtp"
    found = _named(method, drafter, tokens)
    if found["method"] == "eagle" and int(settings.get("--speculative-eagle-topk", 1)) > 1:
        found["tree"] = "best"
    return found


def _is_own(drafter: Any, settings: Settings) -> bool:
    """Return whether the drafter is the model's own prediction layer, which SGLang loads with EAGLE
    if the model has one and no drafter, or its export, is named."""
    from costmodels.models.catalog import load_model

    if drafter is not None and "nextn" in str(drafter).lower():
        return True
    model = settings.get("model")
    return drafter in (None, model) and bool(model and load_model(model).mtp)


def _named(method: str, model: Any, tokens: int | None) -> dict[str, Any]:
    """Return the section of a method; ``eagle3`` is eagle with its own vocabulary."""
    if str(method).endswith("_mtp"):
        method = "mtp"
    ours = _VLLM.get(method)
    if ours is None:
        raise NotPriced(f"drafting by {method} is not modelled")
    found: dict[str, Any] = {"method": ours}
    if ours == "draft_model":
        if not model:
            raise ValueError("names no model to draft with")
        found["model"] = str(model)
    if tokens is not None:
        found["num_speculative_tokens"] = tokens
    if method == "eagle3":
        found["draft_vocab_size"] = _EAGLE3_VOCABULARY
    return found


def _method_of(model: Any) -> str:
    """Return the method that vLLM infers from a model if none is named."""
    name = str(model or "").lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    return next((method for part, method in _BY_NAME if part in name), "draft_model")
