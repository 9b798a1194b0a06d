"""Beam search in a scenario: where it is refused, and what notes say about it."""

from __future__ import annotations

from costmodels.layouts.layout import Layout
from scenarios.schema import Scenario
from sim.beams import beams
from sim.engine.config import why_no_beams
from sim.errors import ScenarioError
from sim.fleet.config import PoolConfig


def check_beams(scenario: Scenario, pool: PoolConfig, layout: Layout) -> None:
    """Raise `ScenarioError` if a pool uses something that is not modeled together with beam
    search."""
    width = scenario.workload.beam_width
    reason = why_no_beams(pool.engine)
    if pool.role != "mixed":
        reason = "P/D disaggregation"
    elif layout.data_parallel_size > 1:
        reason = "data_parallel_size above 1: whole requests are dealt out there"
    if reason is not None:
        raise ScenarioError(f"workload.beam_width {width} is not modelled with {reason}")
    if width > pool.engine.max_num_seqs:
        raise ScenarioError(
            f"workload.beam_width {width} is above engine.max_num_seqs {pool.engine.max_num_seqs}: "
            "no step has room for a request"
        )


def beam_notes(scenario: Scenario) -> list[str]:
    """Return notes on what the forecast assumes about beams."""
    workload = scenario.workload
    found = beams(workload.beam_width, 1 << 40, workload.beam_tail_tokens)
    source = "beams descend from each other uniformly"
    if workload.beam_tail_tokens is not None:
        source = "workload.beam_tail_tokens"
    return [
        f"beam search: {workload.beam_width - 1} further beams of a long answer hold "
        f"{found.own_tokens:,.1f} tokens of their own, in blocks of their own ({source}, assumed); "
        "the copies of partly filled blocks cost no time here"
    ]
