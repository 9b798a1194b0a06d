"""Speculation as servers' commands have it, into a scenario's engine.speculative."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from scenarios.serve_command.values import NotPriced, Settings

_EAGLE3_VOCABULARY = 32_000
"""Of the drafters published for EAGLE-3: their configs' draft_vocab_size."""
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


def vllm_config(text: str, _: Settings) -> dict[str, Any]:
    """vLLM's ``--speculative-config``."""
    try:
        config: Any = json.loads(text)
    except ValueError:
        raise ValueError(f"must be JSON, not {text!r}") from None
    if not isinstance(config, dict):
        raise ValueError(f"must be a JSON object, not {text!r}")
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
    """vLLM's ``--spec-method``, with the model and the tokens of the flags beside it."""
    tokens = settings.get("--spec-tokens")
    return _named(text, settings.get("--spec-model"), None if tokens is None else int(tokens))


def sglang_algorithm(text: str, settings: Settings) -> dict[str, Any]:
    """SGLang's ``--speculative-algorithm``, with the numbers of the flags beside it.

    ``num_draft_tokens`` counts the target's own; a top-k above 1 drafts a tree.
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
    found = _named(method, settings.get("--speculative-draft-model-path"), tokens)
    if found["method"] == "eagle" and int(settings.get("--speculative-eagle-topk", 1)) > 1:
        found["tree"] = "best"
    return found


def _named(method: str, model: Any, tokens: int | None) -> dict[str, Any]:
    """The section of a method; ``eagle3`` is an eagle with a vocabulary of its own."""
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
    """What vLLM takes a model for where no method is named."""
    name = str(model or "").lower()
    if name in ("ngram", "[ngram]"):
        return "ngram"
    return next((method for part, method in _BY_NAME if part in name), "draft_model")


READERS: Mapping[str, Any] = {
    "vllm_speculation": vllm_config,
    "vllm_method": vllm_method,
    "sglang_speculation": sglang_algorithm,
}
