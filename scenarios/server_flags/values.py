"""Convert texts of a command line into values of scenario fields."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import yaml

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)")
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BLOCK_SIZE = 16
_EAGER = 1
"""The smallest possible graph, with which all larger steps are launched kernel by kernel."""
_GRAPH_KEYS = ("max_cudagraph_capture_size", "max_capture_size")

Settings = Mapping[str, Any]
"""What the command's other flags say (by ``--name``) and set (by dotted scenario field), and its
environment variables."""
Gravity = Literal["refused", "reported"]


class NotPriced(Exception):  # noqa: N818 (not an error of the program's)
    """A value whose effect on timing is not modeled; ``gravity`` replaces the flag's."""

    def __init__(self, why: str = "", gravity: Gravity | None = None) -> None:
        super().__init__(why)
        self.gravity = gravity


class Fields(dict[str, Any]):
    """Values of several scenario fields, by dotted name, that one flag sets in place of others."""


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


def compilation(text: str) -> int | Fields | None:
    """Return the largest CUDA graph that a compilation config, or only a level, leaves.

    With graphs of the pieces between attention alone, also that mode.
    """
    if text in ("0", "1", "2", "3"):
        config: dict[str, Any] = {"mode": int(text)}
    else:
        config = json_object(text, "JSON, or a level from 0 to 3")
    mode = str(config.get("cudagraph_mode", "FULL_AND_PIECEWISE")).upper()
    if mode == "NONE" or str(config.get("mode", config.get("level", 3))) == "0":
        return _EAGER
    if mode not in ("FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE"):
        raise NotPriced(f"cudagraph_mode {mode} is not known")
    sizes = [one for one in config.get("cudagraph_capture_sizes") or () if isinstance(one, int)]
    named = [config[key] for key in _GRAPH_KEYS if config.get(key) is not None]
    size = max(sizes) if sizes else graph_size(str(named[0])) if named else None
    if mode != "PIECEWISE":
        return size
    fields = {"engine.cudagraph_mode": mode, "engine.max_cudagraph_capture_size": size}
    return Fields({field: value for field, value in fields.items() if value is not None})


def redundant_experts(text: str) -> int:
    """Return the redundant experts in vLLM's configuration of its expert load balancer."""
    return int(json_object(text).get("num_redundant_experts", 0))


def json_object(text: str, expected: str = "JSON") -> dict[str, Any]:
    """Parse a JSON object, also one that has lost its quotes to a shell. Raises ValueError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = yaml.safe_load(re.sub(r"(?<=[\w\"']):(?=\S)", ": ", text))
        except (yaml.YAMLError, ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"must be {expected}, not {text!r}") from None
    if not isinstance(found, dict):
        raise ValueError(f"must be a JSON object, not {text!r}")
    return found


def ranks_of(settings: Settings) -> int:
    """Return the GPUs of one engine that the flags ask for, without data parallelism."""
    sizes = ("tensor", "pipeline", "prefill_context")
    return math.prod(int(settings.get(f"engine.{name}_parallel_size", 1)) for name in sizes)


def gpus_of_node(text: str, settings: Settings) -> int | None:
    """Return an engine's GPUs per node for a number of nodes; None for a single node."""
    nodes = whole(text)
    if nodes < 2:
        return None
    ranks = ranks_of(settings) * int(settings.get("engine.data_parallel_size", 1))
    return -(-ranks // nodes)


def tokens_of_blocks(text: str, settings: Settings) -> int:
    """Return the KV blocks for a number of tokens, and the one that vLLM keeps empty."""
    tokens, block_size = size(text), settings.get("kv.block_size", _BLOCK_SIZE)
    return -(-tokens // int(block_size)) + 1


def bytes_of_blocks(text: str, settings: Settings) -> int:
    """Return the KV blocks that fit into bytes of one GPU, for the command's model."""
    return size(text) // block_bytes(settings)


def block_bytes(settings: Settings, tokens: int | None = None) -> int:
    """Return the bytes of a KV block of ``tokens`` on one GPU, for the command's model and cache.

    None: as many tokens as the other flags say.
    """
    from costmodels.layouts.shard import shard
    from costmodels.memory.paging import attention_block_tokens, page_bytes
    from costmodels.models.catalog import load_model
    from costmodels.models.quantization import load_method
    from costmodels.models.spec import quantized

    cache = settings.get("kv.cache_dtype") or "auto"
    stored = cache if cache == "auto" else load_method(cache, "cache").kv
    spec = quantized(load_model(settings["model"]), kv_cache=stored)
    rank = shard(spec, int(settings.get("engine.tensor_parallel_size", 1)))
    asked = int(settings.get("kv.block_size", _BLOCK_SIZE)) if tokens is None else tokens
    return page_bytes(rank, attention_block_tokens(rank, asked))


def attention_by_ranks(text: str, settings: Settings) -> Fields:
    """Read SGLang's attention by requests: tp_size GPUs, in groups of tp_size / dp_size.

    Raises `NotPriced` for a model without experts, whose matrices would be split over all of them.
    """
    from costmodels.models.catalog import load_model

    gpus = int(settings.get("--tp-size", 1))
    ranks = int(settings.get("--dp-size", 1))
    if text == "off" or ranks == 1:
        return Fields()
    if gpus % ranks:
        raise ValueError(f"--dp-size {ranks} does not divide --tp-size {gpus}")
    if not load_model(settings["model"]).num_experts:
        raise NotPriced("attention by requests is modelled for models with experts")
    sizes = {"data": ranks, "tensor": gpus // ranks}
    fields = {f"engine.{name}_parallel_size": n for name, n in sizes.items()}
    return Fields(fields | {"pool.replicas": 1})


def hicache_gib(text: str) -> float | None:
    """Return GiB a GPU of SGLang's host cache, given in GB; 0 leaves it to its ratio."""
    return round(number(text) * 1e9 / (1 << 30), 3) or None
