"""What one engine step costs: its operators, accounts, host terms and constants."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from costmodels.engines.profile import padded_size
from costmodels.models.quantization import load_method
from costmodels.steps.cost import StepCost
from costmodels.steps.describe import (
    StepRow,
    host_terms,
    ridge_points,
    simple_step,
    step_seconds,
)
from costmodels.steps.evidence import unpacking_sources
from costmodels.steps.precision_report import PrecisionRow, precision_rows
from costmodels.steps.streaming import STREAM
from scenarios.build.replica import Replica
from sim import __version__
from sim.errors import ScenarioError


def explain_facts(
    replica: Replica,
    *,
    decode_seqs: int,
    context: int,
    prefill_tokens: int,
    prefill_context: int,
) -> dict[str, Any]:
    """Return the operators, accounts, host terms and constants of one step.

    The step has ``decode_seqs`` sequences with ``context`` tokens each, and one chunk of
    ``prefill_tokens`` after ``prefill_context`` cached tokens. Raises `ScenarioError` for an empty
    step, one beyond the engine's limits, and a model that cannot be priced.
    """
    _check(replica, decode_seqs, context, prefill_tokens, prefill_context)
    gpu, cost = replica.gpu, replica.plain_cost()
    shape = simple_step(decode_seqs, context, prefill_tokens, prefill_context, replica.model.clips)
    rows, of_rank = cost.describe(shape), cost.busiest(shape).shape
    gpu_s = sum(row.seconds for row in rows)
    formats = precision_rows(cost.kernels, cost.graph_sizes, of_rank.num_tokens)
    replica_s = cost.price(shape).gpu_ns / 1e9
    is_async = replica.async_scheduling
    step_s = step_seconds(cost, shape, async_scheduling=is_async)
    return {
        "fleetcast_version": __version__,
        **replica.facts(),
        "notes": [*replica.notes, *replica.kernel_notes, *_left_out(replica)],
        "step": {
            "decode_seqs": decode_seqs,
            "context": context,
            "prefill_tokens": prefill_tokens,
            "prefill_context": prefill_context,
            "padded_tokens": padded_size(of_rank.num_tokens, cost.graph_sizes),
            "rank_decode_seqs": of_rank.decode_seqs,
            "rank_prefill_tokens": of_rank.prefill_tokens,
        },
        "replica_s": replica_s,
        "operators": [row._asdict() for row in rows],
        "totals": {
            "calls": sum(row.calls for row in rows),
            "flops": sum(row.flops for row in rows),
            "weight_bytes": sum(row.weight_bytes for row in rows),
            "state_bytes": sum(row.state_bytes for row in rows),
            "activation_bytes": sum(row.activation_bytes for row in rows),
            "comm_bytes": sum(row.comm_bytes for row in rows),
            "seconds": gpu_s,
        },
        "precision": [row._asdict() for row in formats],
        "quality": _quality(replica),
        "accounts_s": cost.split_step(shape),
        "bounds_s": _by_bound(rows),
        "host_s": host_terms(cost, shape),
        "step_s": step_s,
        "bound_by": "GPU" if step_s - replica_s < 1e-8 else "host",
        "async_scheduling": is_async,
        "ridge_flops_per_byte": ridge_points(gpu),
        "peaks_flop_per_s": {peak: getattr(gpu, peak) for peak in ridge_points(gpu)},
        "hbm_bytes_per_s": gpu.hbm_bytes_per_s,
        "constants": _constants(replica, cost, rows, formats),
    }


def _left_out(replica: Replica) -> list[str]:
    if replica.scenario.engine.speculative is None:
        return []
    return ["a step without drafts: neither verifying nor drafting is part of it"]


def _check(
    replica: Replica, decode_seqs: int, context: int, prefill_tokens: int, prefill_context: int
) -> None:
    counts = {
        "--decode-seqs": decode_seqs,
        "--context": context,
        "--prefill-tokens": prefill_tokens,
        "--prefill-context": prefill_context,
    }
    for name, count in counts.items():
        if count < 0:
            raise ScenarioError(f"{name} must not be negative, not {count}")
    seqs = decode_seqs + (1 if prefill_tokens else 0)
    if not seqs:
        raise ScenarioError("an empty step: give --decode-seqs or --prefill-tokens")
    ranks, stages = replica.layout.data_parallel_size, replica.layout.pipeline_parallel_size
    if seqs > ranks * replica.max_num_seqs:
        raise ScenarioError(
            f"{seqs:,} sequences are more than max_num_seqs {replica.max_num_seqs:,}"
            f"{_each(ranks, 'data-parallel ranks')}; --set engine.max_num_seqs=N raises it"
        )
    if decode_seqs + prefill_tokens > ranks * stages * replica.max_num_batched_tokens:
        raise ScenarioError(
            f"{decode_seqs + prefill_tokens:,} tokens are more than max_num_batched_tokens "
            f"{replica.max_num_batched_tokens:,}{_each(ranks * stages, 'ranks and stages')}; "
            "--set engine.max_num_batched_tokens=N raises it"
        )


def _each(count: int, what: str) -> str:
    return f" of each of {count} {what}" if count > 1 else ""


def _quality(replica: Replica) -> list[dict[str, Any]]:
    """Return what the quantization methods do to answers, as reported."""
    sections = zip(("weights", "cache"), replica.methods, strict=True)
    methods = [load_method(name, section) for section, name in sections if name]
    return [
        {"method": method.name, "reported": [found._asdict() for found in method.quality]}
        for method in methods
    ]


def _by_bound(rows: list[StepRow]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for row in rows:
        found[row.bound] += row.seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _constants(
    replica: Replica, cost: StepCost, rows: list[StepRow], formats: list[PrecisionRow]
) -> list[dict[str, Any]]:
    """Return every efficiency constant that operators' times depend on, and the share that does."""
    shares: dict[str, float] = defaultdict(float)
    for row in rows:
        for constant in row.constants:
            shares[constant] += row.share
    known = {str(source["what"]).rpartition(" ")[2]: source for source in cost.efficiency.sources()}
    found = [
        {
            "constant": constant,
            "value": getattr(cost.efficiency, constant),
            "share": share,
            "label": cost.efficiency.label_of(constant),
            "source": known[constant]["source"] if constant in known else "",
        }
        for constant, share in shares.items()
    ]
    if replica.offload is not None and not replica.offload.is_nothing:
        share = sum(row.share for row in rows if row.name == STREAM)
        found += [
            {"constant": source["what"], "share": share, **source}
            for source in replica.offload.sources
        ]
    unpacked_s = sum(row.unpack_s or 0.0 for row in formats)
    for source in unpacking_sources(cost.kernels):
        share = unpacked_s / max(sum(row.seconds for row in rows), 1e-12)
        if "an element" in str(source["what"]):
            share = sum(row.share for row in rows if row.name == "decode_attention")
        found.append({"constant": source["what"], "share": share, **source})
    for source in cost.kernels.chosen.sources():
        kernel = str(source["what"]).partition(" ")[0]
        share = sum(row.share for row in rows if kernel in row.kernel.split("+"))
        found.append({"constant": source["what"], "share": share, **source})
    backend = cost.kernels.backend
    if backend is not None:
        share = sum(row.share for row in rows if row.name.endswith("_attention"))
        found += [
            {"constant": source["what"], "share": share, **source} for source in backend.sources()
        ]
    return sorted(found, key=lambda row: -row["share"])
