"""Convert texts of a command line into values of scenario fields."""

from __future__ import annotations

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

Settings = Mapping[str, Any]
"""Dotted scenario fields that the command's other flags set."""


class NotPriced(Exception):  # noqa: N818 (not an error of the program's)
    """A value whose effect on timing is not modeled."""


def whole(text: str, _: Settings) -> int:
    """Parse a whole number. Raises ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be a whole number, not {text!r}") from None


def number(text: str, _: Settings) -> float:
    """Parse a number. Raises ValueError."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be a number, not {text!r}") from None


def size(text: str, _: Settings) -> int:
    """Parse ``4096``, ``25.6k`` (thousands) or ``8K`` (times 1,024), like vLLM's
    human_readable_int."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or ("." in match[1] and match[2] not in _DECIMAL):
        raise ValueError(f"must be a number such as 4096, 25.6k or 8K, not {text!r}")
    if match[2] in _BINARY:
        return int(match[1]) * _BINARY[match[2]]
    return int(float(match[1]) * _DECIMAL[match[2]])


def size_or_auto(text: str, settings: Settings) -> int | None:
    """Parse a size; auto and -1 mean what fits, which is a scenario's default, so they return
    None."""
    return None if text.strip().lower() in ("auto", "-1") else size(text, settings)


def on(text: str, _: Settings) -> bool:
    """Parse a toggle, which is ``on`` or ``off``."""
    return text == "on"


def model(text: str, _: Settings) -> str:
    """Return a model's name or path unchanged."""
    return text


def chunk(text: str, settings: Settings) -> int:
    """Parse the size of a prefill chunk. Raises `NotPriced` for -1, which means whole prompts."""
    if whole(text, settings) < 1:
        raise NotPriced
    return whole(text, settings)


def graph_size(text: str, settings: Settings) -> int:
    """Parse the largest CUDA graph's size; 0 means no graphs."""
    return max(whole(text, settings), _EAGER)


def largest(text: str, settings: Settings) -> int:
    """Return the largest of several sizes."""
    return max(whole(part, settings) for part in re.split(r"[\s,]+", text.strip("[] ")))


def compilation(text: str, settings: Settings) -> int | None:
    """Return the largest CUDA graph that a compilation config, or only a level, leaves."""
    if text in ("0", "1", "2", "3"):
        config: Any = {"mode": int(text)}
    else:
        try:
            config = json.loads(text)
        except ValueError:
            raise ValueError(f"must be JSON, or a level from 0 to 3, not {text!r}") from None
    if not isinstance(config, dict):
        raise ValueError(f"must be a JSON object, not {text!r}")
    mode = str(config.get("cudagraph_mode", "FULL_AND_PIECEWISE")).upper()
    if mode == "NONE" or str(config.get("mode", config.get("level", 3))) == "0":
        return _EAGER
    if mode not in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL"):
        raise NotPriced(f"cudagraph_mode {mode}: decodes without a full CUDA graph are not priced")
    sizes = [size for size in config.get("cudagraph_capture_sizes") or () if isinstance(size, int)]
    named = [config[key] for key in _GRAPH_KEYS if config.get(key) is not None]
    return max(sizes) if sizes else graph_size(str(named[0]), settings) if named else None


def redundant_experts(text: str, _: Settings) -> int:
    """Return the redundant experts in vLLM's configuration of its expert load balancer."""
    try:
        config: Any = json.loads(text)
    except ValueError:
        raise ValueError(f"must be JSON, not {text!r}") from None
    if not isinstance(config, dict):
        raise ValueError(f"must be a JSON object, not {text!r}")
    return int(config.get("num_redundant_experts", 0))


def gpus_of_node(text: str, settings: Settings) -> int | None:
    """Return an engine's GPUs per node for a number of nodes; None for a single node."""
    nodes = whole(text, settings)
    if nodes < 2:
        return None
    sizes = ("tensor", "pipeline", "data", "prefill_context")
    ranks = math.prod(int(settings.get(f"engine.{name}_parallel_size", 1)) for name in sizes)
    return -(-ranks // nodes)


def tokens_of_blocks(text: str, settings: Settings) -> int:
    """Return the KV blocks for a number of tokens, and the one that vLLM keeps empty."""
    tokens, block_size = size(text, settings), settings.get("kv.block_size", _BLOCK_SIZE)
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
    return size(text, settings) // page_bytes(rank, block_size)


READERS: dict[str, Callable[[str, Settings], Any]] = {
    "whole": whole,
    "number": number,
    "size": size,
    "size_or_auto": size_or_auto,
    "on": on,
    "model": model,
    "chunk": chunk,
    "graph_size": graph_size,
    "largest": largest,
    "compilation": compilation,
    "redundant_experts": redundant_experts,
}
NEED_OTHERS: dict[str, Callable[[str, Settings], Any]] = {
    "tokens_of_blocks": tokens_of_blocks,
    "bytes_of_blocks": bytes_of_blocks,
    "gpus_of_node": gpus_of_node,
}
"""Readers to run after all others, because they need what these set."""
