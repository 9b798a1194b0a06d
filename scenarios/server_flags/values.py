"""Convert texts of a command line into values of scenario fields."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BLOCK_SIZE = 16
_EAGER = 1
"""The smallest possible graph, with which all larger steps are launched kernel by kernel."""
_GRAPH_KEYS = ("max_cudagraph_capture_size", "max_capture_size")

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

Settings = Mapping[str, Any]
"""What the command's other flags say (by ``--name``) and set (by dotted scenario field)."""


class NotPriced(Exception):  # noqa: N818 (not an error of the program's)
    """A value whose effect on timing is not modeled."""


def whole(text: str) -> int:
    """Parse a whole number. Raises ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be a whole number, not {text!r}") from None


def number(text: str) -> float:
    """Parse a number. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be a number, not {text!r}") from None


def size(text: str) -> int:
    """Parse ``4096``, ``25.6k`` (thousands) or ``8K`` (times 1,024), like vLLM's
    human_readable_int."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or ("." in match[1] and match[2] not in _DECIMAL):
        raise ValueError(f"must be a number such as 4096, 25.6k or 8K, not {text!r}")
    if match[2] in _BINARY:
        return int(match[1]) * _BINARY[match[2]]
    return int(float(match[1]) * _DECIMAL[match[2]])


def size_or_auto(text: str) -> int | None:
    """Parse a size; auto and -1 mean what fits, which is a scenario's default, so they return
    None."""
    return None if text.strip().lower() in ("auto", "-1") else size(text)


def chunk(text: str) -> int:
    """Parse the size of a prefill chunk. Raises `NotPriced` for -1, which means whole prompts."""
    if whole(text) < 1:
        raise NotPriced
    return whole(text)


def graph_size(text: str) -> int:
    """Parse the largest CUDA graph's size; 0 means no graphs."""
    return max(whole(text), _EAGER)


def largest(text: str) -> int:
    """Return the largest of several sizes."""
    return max(whole(part) for part in re.split(r"[\s,]+", text.strip("[] ")))


def compilation(text: str) -> int | None:
    """Return the largest CUDA graph that a compilation config, or only a level, leaves."""
    if text in ("0", "1", "2", "3"):
        config: dict[str, Any] = {"mode": int(text)}
    else:
        config = _json_object(text, "JSON, or a level from 0 to 3")
    mode = str(config.get("cudagraph_mode", "FULL_AND_PIECEWISE")).upper()
    if mode == "NONE" or str(config.get("mode", config.get("level", 3))) == "0":
        return _EAGER
    if mode not in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL"):
        raise NotPriced(f"cudagraph_mode {mode}: decodes without a full CUDA graph are not priced")
    sizes = [size for size in config.get("cudagraph_capture_sizes") or () if isinstance(size, int)]
    named = [config[key] for key in _GRAPH_KEYS if config.get(key) is not None]
    return max(sizes) if sizes else graph_size(str(named[0])) if named else None


def redundant_experts(text: str) -> int:
    """Return the redundant experts in vLLM's configuration of its expert load balancer."""
    return int(_json_object(text).get("num_redundant_experts", 0))


def _json_object(text: str, expected: str = "JSON") -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise ValueError(f"must be {expected}, not {text!r}") from None
    if not isinstance(found, dict):
        raise ValueError(f"must be a JSON object, not {text!r}")
    return found


def gpus_of_node(text: str, settings: Settings) -> int | None:
    """Return an engine's GPUs per node for a number of nodes; None for a single node."""
    nodes = whole(text)
    if nodes < 2:
        return None
    sizes = ("tensor", "pipeline", "data", "prefill_context")
    ranks = math.prod(int(settings.get(f"engine.{name}_parallel_size", 1)) for name in sizes)
    return -(-ranks // nodes)


def tokens_of_blocks(text: str, settings: Settings) -> int:
    """Return the KV blocks for a number of tokens, and the one that vLLM keeps empty."""
    tokens, block_size = size(text), settings.get("kv.block_size", _BLOCK_SIZE)
    return -(-tokens // int(block_size)) + 1


def bytes_of_blocks(text: str, settings: Settings) -> int:
    """Return the KV blocks that fit into bytes of one GPU, for the command's model."""
    from costmodels.layouts.shard import shard
    from costmodels.memory.paging import attention_block_tokens, page_bytes
    from costmodels.models.catalog import load_model
    from costmodels.models.quantization import load_method
    from costmodels.models.spec import quantized

    cache = settings.get("kv.cache_dtype") or "auto"
    stored = cache if cache == "auto" else load_method(cache, "cache").kv
    spec = quantized(load_model(settings["model"]), kv_cache=stored)
    rank = shard(spec, int(settings.get("engine.tensor_parallel_size", 1)))
    block_size = attention_block_tokens(rank, int(settings.get("kv.block_size", _BLOCK_SIZE)))
    return size(text) // page_bytes(rank, block_size)


def vllm_speculation(text: str) -> dict[str, Any]:
    """Read vLLM's ``--speculative-config`` into a section of speculation."""
    config = _json_object(text)
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
    found = _named(method, settings.get("--speculative-draft-model-path"), tokens)
    if found["method"] == "eagle" and int(settings.get("--speculative-eagle-topk", 1)) > 1:
        found["tree"] = "best"
    return found


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


READERS: dict[str, Callable[[str], Any]] = {
    "whole": whole,
    "number": number,
    "size": size,
    "size_or_auto": size_or_auto,
    "on": lambda text: text == "on",
    "how_many": lambda text: len(text.split()),
    "model": str,
    "chunk": chunk,
    "graph_size": graph_size,
    "largest": largest,
    "compilation": compilation,
    "redundant_experts": redundant_experts,
    "vllm_speculation": vllm_speculation,
}
"""Readers of a flag's text, by the name that the tables use."""
WITH_OTHERS: dict[str, Callable[[str, Settings], Any]] = {
    "tokens_of_blocks": tokens_of_blocks,
    "bytes_of_blocks": bytes_of_blocks,
    "gpus_of_node": gpus_of_node,
    "vllm_method": vllm_method,
    "sglang_speculation": sglang_speculation,
}
"""Readers that run after all others, because they need what the other flags say or set."""
