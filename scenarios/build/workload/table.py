"""The scenario's workload as a request table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scenarios.build import features
from scenarios.build.images import with_image_tokens
from scenarios.build.workload.classes import build_classes
from scenarios.build.workload.generated import generator_spec
from scenarios.build.workload.trace import trace_table
from scenarios.schema import Scenario
from scenarios.schema.workload import Source
from sim.beams import BeamSearch
from sim.clock import to_s
from sim.errors import ScenarioError
from sim.request_table import UNLIMITED, RequestTable, draw_lengths
from workloads import transform
from workloads.generator.generate import generate


def build_table(scenario: Scenario) -> RequestTable:
    """Read or generate the requests and apply what the scenario says about them.

    Raises `TraceError` if a file cannot be read, `ScenarioError` for settings that do not fit.
    """
    table = features.with_columns(scenario, _one_answer_each(scenario))
    workload = scenario.workload
    if workload.beam_width > 1:  # a request without output has no hypotheses
        widths = np.where(table.output_tokens > 0, workload.beam_width, 1)
        tail_tokens = workload.beam_tail_tokens
        beams = BeamSearch(widths=widths, tail_tokens=tail_tokens, seed=scenario.seed)
        return replace(table, beams=beams)
    if workload.n == 1:
        return table
    samples = draw_lengths(table.output_tokens, workload.n, workload.n_shortest, scenario.seed)
    return replace(table, samples=samples)


def _one_answer_each(scenario: Scenario) -> RequestTable:
    workload = with_image_tokens(scenario).workload
    if not workload.classes:
        return _build_source(workload, scenario.seed)
    table = build_classes(scenario, _build_source)
    if workload.num_requests is not None:
        table = transform.limit(table, workload.num_requests)
    if workload.max_concurrency is not None:
        table = transform.with_concurrency(table, workload.max_concurrency)
    return table


def _build_source(source: Source, seed: int) -> RequestTable:
    if source.trace is not None:
        return trace_table(source, seed)
    return generate(generator_spec(source), seed)


def describe_workload(scenario: Scenario, table: RequestTable) -> str:
    """Describe the workload in one line for the result's conditions."""
    text = f"{len(table):,} requests, {table.source}"
    if scenario.workload.n > 1:
        text += f", {scenario.workload.n} answers each"
    if scenario.workload.beam_width > 1:
        text += f", beam search of width {scenario.workload.beam_width}"
    if table.max_concurrency < UNLIMITED:
        text += f", at most {table.max_concurrency} in flight"
    if scenario.workload.sessions_per_h is not None:
        text += f", {scenario.workload.sessions_per_h:g} sessions/h"
    if scenario.workload.rate_per_s is not None:
        text += f", {scenario.workload.rate_per_s:g} requests/s"
    return text


def check_warmup(scenario: Scenario, table: RequestTable) -> None:
    """Raise `ScenarioError` if no request would be left to measure after the warm-up."""
    if not len(table) or not table.is_open_loop:
        return
    last_s = to_s(int(table.arrival_ns[-1]))
    if scenario.warmup_s > last_s:
        raise ScenarioError(
            f"warmup_s {scenario.warmup_s:g} leaves no request to measure: the last one arrives "
            f"at {last_s:.6g} s"
        )
