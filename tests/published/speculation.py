"""B5 to B8: published results of speculative decoding.

Acceptance is taken from the papers; the cost of drafting and verifying is predicted. No constant is
tuned to these figures.
"""

from __future__ import annotations

from functools import cache
from statistics import mean

from costmodels.drafting.speculative_build import compile_speculative_cost
from costmodels.drafting.speculative_cost import SpeculativeStepCost
from costmodels.hardware.gpus import load_gpu
from costmodels.models.catalog import load_model
from costmodels.models.drafters import make_drafter
from costmodels.steps.compile import StepOptions
from policies.acceptance.rounds import survivals, tokens_per_step
from policies.acceptance.tree import best_tree, ranked_rates
from sim.evidence import Evidence
from sim.shape import StepShape
from tests.published.rows import Row, Section

CONTEXT = 600
RANKED = 0.6
"""Rate by which the shape of a tree is chosen: its levels and their widths alone cost time."""

LEVIATHAN = {
    (0.6, 2): (1.53, 1.96),
    (0.7, 3): (1.58, 2.53),
    (0.8, 2): (1.23, 2.44),
    (0.8, 5): (1.63, 3.69),
    (0.9, 2): (1.11, 2.71),
    (0.9, 10): (1.60, 6.86),
}
"""(rate, drafts): operations and speed over plain decoding."""

CHEN = {"XSum, nucleus": (2.98, 7.52), "XSum, greedy": (3.20, 7.00), "HumanEval": (3.91, 5.73)}
"""Tokens a step, ms a token, at 4 drafts."""
CHEN_LOOP_MS = (14.1, 28.6)
"""A loop without drafts and with 7, read from the paper's plot; in between a line."""

DFLASH = {
    "GSM8K": (6.54, 5.15),
    "MATH": (7.87, 6.08),
    "AIME25": (7.08, 5.62),
    "HumanEval": (6.50, 5.14),
    "MBPP": (5.95, 4.65),
    "LiveCodeBench": (7.27, 5.51),
    "MT-Bench": (4.24, 2.75),
}
"""Tokens a step and speed of Qwen3-8B, block 16, temperature 0."""

SPEC_BENCH = {
    "7B EAGLE-2": (4.34, 2.36),
    "7B EAGLE": (3.58, 2.10),
    "7B Medusa": (2.31, 1.71),
    "7B PLD": (1.75, 1.66),
    "13B EAGLE-2": (4.43, 2.46),
    "13B EAGLE": (3.64, 2.16),
    "13B Medusa": (2.39, 1.80),
}
"""Tokens a step and speed of Vicuna on an A100-80G, fp16, greedy."""

MEDUSA = {"Vicuna-7B": ("llama-2-7b", 1.22), "Vicuna-13B": ("llama-2-13b", 1.23)}

DSPARK_TASKS = 9
DSPARK: dict[str, dict[str, tuple[float, ...]]] = {
    "Qwen3-4B": {
        "Eagle3": (5.14, 4.62, 3.92, 3.69, 4.16, 3.77, 2.39, 2.26, 2.55),
        "DFlash": (5.40, 4.85, 4.15, 4.40, 4.74, 4.18, 3.07, 2.96, 2.83),
        "DSpark": (6.11, 5.70, 4.89, 5.13, 5.38, 4.86, 3.64, 3.54, 3.29),
    },
    "Qwen3-8B": {
        "Eagle3": (5.30, 4.77, 3.91, 3.96, 4.33, 4.17, 2.66, 2.54, 2.54),
        "DFlash": (5.33, 4.91, 4.07, 4.36, 4.64, 4.39, 3.11, 2.98, 2.81),
        "DSpark": (6.17, 5.78, 5.01, 5.16, 5.52, 5.17, 3.72, 3.58, 3.21),
    },
    "Qwen3-14B": {
        "Eagle3": (5.24, 4.60, 3.71, 3.81, 4.14, 4.01, 2.62, 2.47, 2.48),
        "DFlash": (5.41, 4.84, 3.98, 4.44, 4.59, 4.33, 3.10, 2.94, 2.72),
        "DSpark": (6.21, 5.74, 4.94, 5.26, 5.43, 5.02, 3.70, 3.58, 3.13),
    },
}
"""Tokens a step by task (3 of math, 3 of code, 3 of chat), block 7, temperature 1."""
MACRO = {
    "Eagle3": {"Qwen3-4B": 30.9, "Qwen3-8B": 26.7, "Qwen3-14B": 30.0},
    "DFlash": {"Qwen3-4B": 16.3, "Qwen3-8B": 18.4, "Qwen3-14B": 18.3},
}
CURVES = {
    "DFlash, chat": ((0.72, 0.63), "DFlash", slice(6, 9)),
    "DFlash, code": ((0.87, 0.78), "DFlash", slice(3, 6)),
    "Eagle3, chat": ((0.53, 0.74), "Eagle3", slice(6, 9)),
}
"""Acceptance at the first and the last place; between, a line."""
BLOCK = 7


@cache
def cost(
    model: str, gpu: str, method: str, drafts: int, depth: int = 0, vocab: int | None = None
) -> SpeculativeStepCost:
    """One GPU, batch 1; ``depth``: of a tree of the likeliest nodes."""
    target = load_model(model)
    rates = [ranked_rates(RANKED, 10)]
    tree = best_tree(rates, drafts, depth) if depth else None
    return compile_speculative_cost(
        target,
        make_drafter(method, target, tree=tree, draft_vocab_size=vocab),
        load_gpu(gpu),
        StepOptions(max_num_batched_tokens=2048, max_num_seqs=8),
        drafts_by_seqs=((1, drafts),),
        acceptance=Evidence(label="reported", source="the paper's tokens a step"),
    )


def overhead(of: SpeculativeStepCost) -> float:
    """A step that drafts and verifies over one that does not, one sequence."""
    (_, drafts), *_ = of.drafts_by_seqs
    plain = StepShape(1, CONTEXT, logits=1, speculated=(0, 0, 0))
    verify = StepShape(1, CONTEXT, logits=1 + drafts, speculated=(drafts, 0, 0))
    return _step_ns(of, verify) / _step_ns(of, plain)


def _step_ns(of: SpeculativeStepCost, shape: StepShape) -> float:
    price = of.price(shape)
    host_ns = of.schedule_ns(1) + price.launch_ns + of.update_ns(1)
    return max(price.gpu_ns, host_ns)


@cache
def dflash_overhead() -> float:
    """Return the overhead of a block of 16 tokens, of which 15 are drafted."""
    return overhead(cost("qwen3-8b", "H200", "dflash", 15))


def leviathan() -> Section:
    """Table 1: a formula, to two decimals."""
    rows = []
    for (rate, drafts), (operations, speed) in LEVIATHAN.items():
        tokens = tokens_per_step(survivals([rate], drafts))
        what = f"a {rate}, {drafts} drafts"
        rows.append(Row(f"{what}: operations", round((drafts + 1) / tokens, 2), operations, "x", 0))
        rows.append(Row(f"{what}: speed", round(tokens, 2), speed, "x", 0))
    return Section("B5 Leviathan, table 1", "drafts cost nothing; rounded to two decimals", rows)


def chen() -> Section:
    """Table 1: a loop with 4 drafts over the tokens it gives."""
    without, with_seven = CHEN_LOOP_MS
    loop_ms = without + (with_seven - without) * 4 / 7
    rows = [
        Row(f"{what}, {tokens} tokens a step", loop_ms / tokens, ms, "ms", 0.03)
        for what, (tokens, ms) in CHEN.items()
    ]
    note = f"the parts published, 14.1 + 4 x 1.8 = 21.3 ms, would be {21.3 / loop_ms - 1:+.1%}"
    return Section(
        "B5 Chen, table 1: Chinchilla on 16 TPU v4, 4 drafts of a 4B model",
        f"loop of {loop_ms:.1f} ms, from its plot; tokens a step as the paper's times imply",
        rows,
        (note,),
    )


def medusa() -> Section:
    """A tree of 64 nodes verified at batch 1."""
    rows = [
        Row(what, overhead(cost(model, "A100-SXM-80GB", "medusa", 63, 4)), published, "x", 0.1)
        for what, (model, published) in MEDUSA.items()
    ]
    return Section(
        "B6 Medusa-2: a step over a plain one",
        f"64 nodes and 4 heads on an A100, batch 1, context {CONTEXT}; datasheet constants",
        rows,
    )


def dflash() -> Section:
    """Speed from tokens a step and the predicted overhead."""
    taken = dflash_overhead()
    rows = [
        Row(task, tokens / taken, speed, "x", 0.2 if task == "MT-Bench" else 0.15)
        for task, (tokens, speed) in DFLASH.items()
    ]
    return Section(
        "B7 DFlash: speed of Qwen3-8B on an H200 from its tokens a step",
        f"block 16, 5 layers, batch 1, context {CONTEXT}; predicted overhead {taken:.2f}, in the "
        "paper 1.26 to 1.32, MT-Bench 1.54",
        rows,
    )


def others() -> Section:
    """Overheads printed as predicted: research code in PyTorch spends more on its host."""
    a100 = "A100-SXM-80GB"
    ours = {
        size: {
            "EAGLE-2": overhead(cost(model, a100, "eagle", 59, 6)),
            "EAGLE": overhead(cost(model, a100, "eagle", 25, 5)),
            "Medusa": overhead(cost(model, a100, "medusa", 63, 4)),
            "PLD": overhead(cost(model, a100, "ngram", 10)),
        }
        for size, model in (("7B", "llama-2-7b"), ("13B", "llama-2-13b"))
    }
    rows = [
        Row(
            f"Qwen3-8B, H200: EAGLE-3, {nodes} nodes",
            overhead(cost("qwen3-8b", "H200", "eagle", nodes, 7, 32_000)),
            published,
            "x",
        )
        for nodes, published in ((16, 1.68), (60, 1.67))
    ]
    for what, (tokens, speed) in SPEC_BENCH.items():
        size, method = what.split()
        rows.append(Row(f"Spec-Bench {what}", ours[size][method], tokens / speed, "x"))
    plain = cost("llama-3.1-8b", "H100-SXM", "eagle", 3, 0, 32_000)
    rows.append(
        Row(
            "Llama-3.1-8B, H100: without drafts",
            1e9 / _step_ns(plain, StepShape(1, CONTEXT, logits=1, speculated=(0, 0, 0))),
            158.0,
            "tok/s",
        )
    )
    return Section(
        "B7 others: a step over a plain one (tokens a step over speed)",
        f"batch 1, context {CONTEXT}; trees of the likeliest nodes at a rate of {RANKED}; no bar",
        rows,
        (
            "priced as in a serving engine, whose host runs ahead of the GPU: Spec-Bench's PyTorch "
            "loops do not, and draft a level at a time from Python",
            "SpS, Hydra, REST and Lookahead are left out: their drafters are not in the catalogue",
        ),
    )


def dspark() -> Section:
    """Tokens a step from curves of acceptance by place; macro means of the table."""
    rows = []
    for what, ((first, last), method, tasks) in CURVES.items():
        places = [first + (last - first) * place / (BLOCK - 1) for place in range(BLOCK)]
        published = mean([mean(of[method][tasks]) for of in DSPARK.values()])
        rows.append(Row(what, tokens_per_step(survivals(places, BLOCK)), published, "tok", 0.05))
    for method, by_model in MACRO.items():
        for model, published in by_model.items():
            own, other = mean(DSPARK[model]["DSpark"]), mean(DSPARK[model][method])
            gain = round((own / other - 1) * 100, 1)
            rows.append(Row(f"DSpark over {method}, {model}", gain, published, "%", 0))
    return Section(
        "B8 DSpark: tokens a step from acceptance by place, and macro gains",
        f"block {BLOCK}, chain; curves are two read values with a line between, for models that "
        "are not named; tokens a step are means over three models and three tasks",
        rows,
    )


def sections() -> list[Section]:
    """Return the sections of all papers."""
    return [leviathan(), chen(), medusa(), dflash(), others(), dspark()]
