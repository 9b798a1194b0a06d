"""Read the start-up log of a vLLM or SGLang server: its flags, version, GPU and memory.

Lines are known by their words, not by their place, since versions add and move them; workers of
several ranks say the same, and the largest figure counts where they differ. vLLM 0.8 and newer, and
its older engine where it printed the same sums.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from calibrate.results.values import read_text
from sim.errors import ScenarioError

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"(-?[\d,]*\.?\d+)"
_GIB = rf"{_NUMBER}\s*Gi?B"
_VERSIONS = (
    r"vLLM API server version v?(\d+\.\d+[\w.+]*)",
    r"LLM engine \(v(\d+\.\d+[\w.+]*)\)",
    r"[\u2580-\u259f\s]version v?(\d+\.\d+[\w.+]*)",
    r"(?i)sglang[\s_-]*(?:version)?[\s:=v'\"]*(\d+\.\d+[\w.+]*)",
)
# The first pattern that a log has counts; figures in GiB, tokens and requests.
_FIGURES: Mapping[str, tuple[str, ...]] = {
    "weights_gib": (
        rf"Model loading took {_GIB}",
        rf"[Ll]oading model weights took {_GIB}",
        rf"Actual usage is {_GIB} for weight",
        rf"model weights take {_GIB}",
        rf"Load weight end\..*?mem usage={_GIB}",
    ),
    "activation_gib": (
        rf"{_GIB} for peak activation",
        rf"torch peak memory increase: {_GIB}",
        rf"PyTorch activation peak memory takes {_GIB}",
    ),
    "other_gib": (
        rf"{_GIB} for non-torch memory",
        rf"non-torch forward increase memory: {_GIB}",
        rf"non_torch_memory takes {_GIB}",
    ),
    "graphs_gib": (
        rf"Graph capturing finished in .*? took {_GIB}",
        rf"Capture cuda graph end\..*?mem usage={_GIB}",
    ),
    "kv_cache_gib": (
        rf"Available KV cache memory: {_GIB}",
        rf"memory reserved for KV Cache is {_GIB}",
        rf"KV Cache is allocated\..*?KV size: {_GIB}",
    ),
    "kv_cache_tokens": (
        rf"GPU KV cache size: {_NUMBER} tokens",
        rf"max_total_num_tokens={_NUMBER}",
        rf"KV Cache is allocated\..*?#tokens: {_NUMBER}",
    ),
    "max_concurrency": (rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x",),
    "max_model_len": (
        rf"Maximum concurrency for {_NUMBER} tokens per request",
        rf"Using max model len {_NUMBER}",
        rf"max_seq_len={_NUMBER}",
        rf"context_len={_NUMBER}",
    ),
    "max_num_batched_tokens": (
        rf"Chunked prefill is enabled with max_num_batched_tokens={_NUMBER}",
    ),
    "num_gpu_blocks": (
        rf"num_gpu_blocks is: {_NUMBER}",
        rf"# (?:GPU|cuda) blocks: {_NUMBER}",
    ),
    "device_gib": (
        rf"Free memory on device \([\d.]+/{_NUMBER} ?GiB\)",
        rf"total_gpu_memory \({_GIB}\)",
    ),
}
_SPLIT_KV = re.compile(rf"KV Cache is allocated\..*?K size: {_GIB}, V size: {_GIB}")
_DEVICE = re.compile(r"device_name=([\w.-]+?)(?:,|\.json|\b(?=['\" ]))")
_ARGS = re.compile(r"non-default args: (\{.*\})")
_SERVER_ARGS = re.compile(r"server_args=ServerArgs\((.*)\)\s*$")
_CONFIG = re.compile(r"LLM engine \(v[^)]*\) with config: (.*)$")
_MODEL = re.compile(r"\bmodel='([^']+)'")
_PAIR = re.compile(r"(\w+)=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}|[^,()\s]+)")
_NO_LITERAL = (ValueError, SyntaxError, MemoryError, RecursionError)
# What the engine says it runs with, beside its flags.
_SETTINGS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFacts:
    """What one start-up log says."""

    engine: Literal["vllm", "sglang"]
    version: str | None
    arguments: Mapping[str, Any]
    """Flags that were given, by name with underscores; a log without them has those that the
    engine says it runs with."""
    device: str | None
    """The GPU as its driver names it."""
    figures: Mapping[str, float] = field(default_factory=dict)
    """Figures by name: ``weights_gib``, ``activation_gib``, ``other_gib``, ``graphs_gib``,
    ``kv_cache_gib``, ``kv_cache_tokens``, ``max_concurrency``, ``max_model_len``,
    ``max_num_batched_tokens``, ``num_gpu_blocks``, ``device_gib``."""


def read_startup_log(path: Path) -> StartupFacts:
    """Read a log. Raises `ScenarioError` for a file that cannot be read, or that has neither flags
    nor a size of the KV cache."""
    return parse_startup_log(read_text(path), str(path))


def parse_startup_log(text: str, name: str = "log") -> StartupFacts:
    """Parse a log's text, of the file ``name``. Raises `ScenarioError` like `read_startup_log`."""
    text = _COLORS.sub("", text)
    figures = {what: found for what in _FIGURES if (found := _figure(what, text)) is not None}
    split = [float(k) + float(v) for k, v in _SPLIT_KV.findall(text)]
    if split and "kv_cache_gib" not in figures:
        figures["kv_cache_gib"] = max(split)
    is_sglang = "ServerArgs(" in text or "Load weight end" in text or "sglang" in text.lower()
    is_vllm = "non-default args:" in text or "GPU KV cache size" in text or "vllm" in text.lower()
    engine: Literal["vllm", "sglang"] = "sglang" if is_sglang and not is_vllm else "vllm"
    if "ServerArgs(" in text:
        engine = "sglang"
    arguments = _sglang_arguments(text) if engine == "sglang" else _vllm_arguments(text)
    if not arguments and not {"kv_cache_tokens", "kv_cache_gib"} & set(figures):
        raise ScenarioError(
            f"{name}: no start-up log of vLLM or SGLang: expected a line such as `non-default "
            "args: {...}`, `GPU KV cache size: ... tokens` or `KV Cache is allocated. #tokens: "
            "...`; give the log from its first line on"
        )
    device = _DEVICE.search(text)
    version = next((m[1] for p in _VERSIONS if (m := re.search(p, text))), None)
    return StartupFacts(
        engine=engine,
        version=version,
        arguments=arguments,
        device=None if device is None else device[1].replace("_", " "),
        figures=figures,
    )


def _figure(what: str, text: str) -> float | None:
    for pattern in _FIGURES[what]:
        found = [float(one.replace(",", "")) for one in re.findall(pattern, text)]
        if found:
            # Ranks differ by their share of layers, the smallest pool is every rank's.
            return min(found) if what.startswith("kv_cache") else max(found)
    return None


def _vllm_arguments(text: str) -> dict[str, Any]:
    found = _ARGS.search(text)
    given: dict[str, Any] = {}
    if found is not None:
        try:
            given = ast.literal_eval(found[1])
        except _NO_LITERAL:
            given = _pairs(re.sub(r"'(\w+)': ", r"\1=", found[1]))
    given.pop("model_tag", None)
    said = next((line for line in text.splitlines() if _CONFIG.search(line)), "")
    config = _pairs(said.partition("with config:")[2])
    model = _MODEL.search(said)
    if model is not None:
        given.setdefault("model", model[1])
    for name in _SETTINGS:
        if isinstance(config.get(name), int) and config[name] > 1:
            given.setdefault(name, config[name])
    if config.get("enforce_eager") is True:
        given.setdefault("enforce_eager", True)
    return given


def _sglang_arguments(text: str) -> dict[str, Any]:
    for line in text.splitlines():
        found = _SERVER_ARGS.search(line)
        if found is not None:
            return _pairs(found[1])
    return {}


def _pairs(text: str) -> dict[str, Any]:
    """Return ``name=value`` pairs of a printed call; a value that is no literal is its text."""
    found: dict[str, Any] = {}
    for name, value in _PAIR.findall(text):
        try:
            found.setdefault(name, ast.literal_eval(value))
        except _NO_LITERAL:
            found.setdefault(name, value)
    return found
