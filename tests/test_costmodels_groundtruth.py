"""Predicted against measured engine steps: vLLM 0.25.1 on one H200 (2026-11-29).

The H200 efficiency constants were fitted to these points, so this guards the fit; it does not
tell how well an unseen model is predicted.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodels.gpu_spec import load_gpu
from costmodels.models import load_model
from costmodels.step_cost import RooflineStepCost, compile_step_cost
from sim.shape import StepShape, causal_pairs

SHARED = Path(
    os.environ.get("FLEETCAST_SHARED", str(Path(__file__).resolve().parents[2] / "shared"))
)
DATA = SHARED / "data" / "groundtruth"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no ground truth at {DATA} (set FLEETCAST_SHARED)"
)

MODELS = {"m1": "llama-3.1-8b", "m2": "qwen3-30b-a3b"}
# A decode point is the median of twenty steps that follow a few warm-up steps.
STEPS_TO_THE_MEDIAN = 14


@cache
def cost(key: str) -> RooflineStepCost:
    return compile_step_cost(
        load_model(MODELS[key]),
        load_gpu("h200"),
        max_num_batched_tokens=8192,
        max_num_seqs=1024,
    )


def points(key: str, kind: str) -> list[dict[str, Any]]:
    content = json.loads((DATA / f"{key}_info.json").read_text())
    return [point for point in content["e1"] if point["kind"] == kind]


def steady_decode_ms(key: str, seqs: int, context: int) -> float:
    """Interval between outputs, two batches in flight: the slower of the two clocks."""
    shape = StepShape(
        decode_seqs=seqs,
        decode_context_tokens=seqs * (context + STEPS_TO_THE_MEDIAN),
        logits=seqs,
    )
    price = cost(key).price(shape)
    host_ns = cost(key).schedule_ns(seqs) + price.launch_ns + cost(key).update_ns(seqs)
    return max(price.gpu_ns, host_ns) / 1e6


def idle_prefill_ms(key: str, prompts: int, tokens: int, start: int = 0) -> float:
    """Start of scheduling to output, on an idle engine."""
    shape = StepShape(
        prefill_seqs=prompts,
        prefill_tokens=prompts * tokens,
        prefill_context_tokens=prompts * start,
        prefill_pairs=prompts * causal_pairs(start, tokens),
        logits=prompts,
    )
    price = cost(key).price(shape)
    end_ns = max(price.launch_delay_ns + price.gpu_ns, price.launch_ns + price.tail_ns)
    return (cost(key).schedule_ns(prompts) + end_ns) / 1e6


def errors(pairs: list[tuple[float, float]]) -> np.ndarray:
    predicted, measured = np.array(pairs).T
    relative: np.ndarray = predicted / measured - 1
    return relative


def report(what: str, relative: np.ndarray) -> float:
    """Print and return the median absolute error."""
    median = float(np.median(np.abs(relative)))
    worst = float(np.abs(relative).max())
    bias = float(np.median(relative))
    print(f"{what}: median {median:.1%}, worst {worst:.1%}, bias {bias:+.1%} (n={relative.size})")
    return median


@pytest.mark.parametrize(("key", "bar"), [("m1", 0.08), ("m2", 0.15)])
def test_decode_steps(key: str, bar: float) -> None:
    relative = errors(
        [
            (steady_decode_ms(key, point["B"], point["L"]), point["ms_median"])
            for point in points(key, "decode")
        ]
    )
    assert relative.size >= 30
    assert report(f"\n{MODELS[key]} decode steps", relative) < bar


@pytest.mark.parametrize(("key", "bar"), [("m1", 0.08), ("m2", 0.15)])
def test_prefill_steps(key: str, bar: float) -> None:
    relative = errors(
        [
            (idle_prefill_ms(key, 1, point["P"]), point["ms_median"])
            for point in points(key, "prefill")
            if point["P"] <= 8192
        ]
    )
    assert relative.size >= 7
    assert report(f"\n{MODELS[key]} prefill steps", relative) < bar


@pytest.mark.parametrize(("key", "bar"), [("m1", 0.08), ("m2", 0.15)])
def test_several_prompts_in_a_step(key: str, bar: float) -> None:
    relative = errors(
        [
            (idle_prefill_ms(key, point["N"], point["P"]), point["ms_median"])
            for point in points(key, "multiprefill")
        ]
    )
    assert report(f"\n{MODELS[key]} several prompts", relative) < bar


@pytest.mark.parametrize(("key", "bar"), [("m1", 0.08), ("m2", 0.15)])
def test_prefill_on_a_cached_context(key: str, bar: float) -> None:
    """From 512 tokens on; a chunk of 16 sits on the launch floor, where the profile runs high."""
    relative = errors(
        [
            (idle_prefill_ms(key, 1, point["P"], point["C"]), point["ms_median"])
            for point in points(key, "extend")
            if point["P"] >= 512
        ]
    )
    assert report(f"\n{MODELS[key]} prefill on a context", relative) < bar


@pytest.mark.parametrize("key", ["m1", "m2"])
def test_mixed_steps_bound_by_the_gpu(key: str) -> None:
    """4096 tokens of prefill and more: the host's launches hide behind the GPU."""
    pairs = []
    for point in points(key, "mixed"):
        tokens, decodes, context = point["P"], point["D"], point["L"]
        if tokens < 4096:
            continue
        shape = StepShape(
            decode_seqs=decodes,
            decode_context_tokens=decodes * (context + STEPS_TO_THE_MEDIAN),
            prefill_seqs=1,
            prefill_tokens=tokens,
            prefill_pairs=causal_pairs(0, tokens),
            logits=decodes + 1,
        )
        pairs.append((cost(key).price(shape).gpu_ns / 1e6, point["ms_median"]))
    assert report(f"\n{MODELS[key]} mixed steps", errors(pairs)) < 0.08
