"""Compiles a target, a drafter and a table of drafts into the step cost of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from costmodels.datafile import read_data
from costmodels.drafting.passes import DraftHost, PricedPass
from costmodels.drafting.speculative_cost import SpeculativeStepCost
from costmodels.hardware.gpus import GpuSpec
from costmodels.layouts.draft_layout import draft_layout
from costmodels.layouts.layout import Layout
from costmodels.models.drafters import Drafter, Pass
from costmodels.models.spec import ModelSpec
from costmodels.steps.compile import StepOptions, compile_step_cost
from sim.errors import ScenarioError
from sim.evidence import Evidence


def compile_speculative_cost(
    target: ModelSpec,
    drafter: Drafter,
    gpu: GpuSpec,
    options: StepOptions,
    *,
    drafts_by_seqs: tuple[tuple[int, int], ...],
    acceptance: Evidence,
    host_speed_factor: float = 1.0,
) -> SpeculativeStepCost:
    """Return the step cost of a replica that speculates; ``options`` are those of the target.

    Raises `ScenarioError` for layouts in which drafts are not modeled.
    """
    check_layout(options.layout)

    def priced(one: Pass) -> PricedPass:
        own, ranks = draft_layout(options.layout, one.model)
        of_pass = replace(options, layout=own, tokens_per_seq=max(one.tokens_per_seq, 1))
        return PricedPass(
            compile_step_cost(one.model, gpu, of_pass),
            one.tokens_per_seq,
            one.logits_per_seq,
            one.times,
            one.reads_prompts,
            ranks,
            tuple(target.clips.index(clip) for clip in one.model.clips),
        )

    numbers = sorted({0, *(drafts for _, drafts in drafts_by_seqs)})
    host, evidence = _host(drafter, host_speed_factor)
    return SpeculativeStepCost(
        targets={
            drafts: compile_step_cost(target, gpu, replace(options, tokens_per_seq=1 + drafts))
            for drafts in numbers
        },
        passes={
            drafts: tuple(
                priced(one)
                for one in (drafter.passes(drafts) if drafts else drafter.prompt_passes())
            )
            for drafts in numbers
        },
        drafts_by_seqs=drafts_by_seqs,
        host=host,
        host_evidence=evidence,
        acceptance_evidence=acceptance,
    )


def check_layout(layout: Layout) -> None:
    """Raise `ScenarioError` for a layout in which drafts are not modeled."""
    if layout.pipeline_parallel_size > 1:
        raise ScenarioError(
            "engine.speculative with pipeline_parallel_size above 1 is not modelled: the last "
            "stage's drafts would have to travel to the first"
        )
    if layout.context_ranks > 1:
        raise ScenarioError("engine.speculative is not modelled with context parallelism")
    if layout.enable_dbo:
        raise ScenarioError("engine.speculative is not modelled with enable_dbo")


def _host(drafter: Drafter, factor: float) -> tuple[DraftHost, Evidence]:
    terms = read_data("models/drafters.yaml")["host"]
    evidence = Evidence(
        label=terms["pass_launch_s"]["label"], source="costmodels/models/drafters.yaml"
    )

    def of(names: Sequence[str]) -> list[float]:
        return [factor * terms[name]["value"] for name in names]

    launch_s, base_s, per_seq_s = of(("pass_launch_s", "ngram_base_s", "ngram_per_seq_s"))
    if drafter.draft is None:
        return DraftHost(0.0, 0.0, base_s, per_seq_s), evidence
    return DraftHost(launch_s, terms["pass_gap_s"]["value"], 0.0, 0.0), evidence
