"""Beam search: hypotheses that advance together, and the blocks they do not share."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.build.builder import build
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from sim.beams import Beams, beams, neutral_tokens
from sim.books.token_times import token_times_ns
from sim.engine.config import EngineConfig, Speculation
from sim.engine.step import Plan
from sim.engine.view import EngineView
from sim.errors import ScenarioError, TraceError
from sim.fleet.cluster import RunLog, run_cluster
from sim.fleet.config import Fleet
from sim.fleet.handover import TransferConfig
from sim.fleet.service import ClientConfig, ServiceConfig
from sim.kv.layout import KVLayout, WindowPages
from sim.request import Status
from sim.request_table import RequestTable, draw_lengths
from tests.properties.conservation import MAKERS, audited, check_empty
from tests.properties.costs import COSTS, AffineCost
from tests.properties.engines import HARD, small_pool, small_run
from tests.properties.outcome import outcome
from tests.properties.tables import searched, table_of, tables

MS = 1_000_000
STEP = AffineCost(base_s=10e-3, per_token_s=0, per_context_s=0)  # every step takes 10 ms
SYNC = EngineConfig(async_scheduling=False, block_size=4, replica_blocks=101)


def column(log: RunLog, name: str) -> list[int]:
    steps = log.steps[0].columns()
    found: list[int] = np.repeat(steps[name], steps["steps"]).tolist()
    return found


# What hypotheses hold beside one whole one.


@pytest.mark.parametrize(
    ("width", "tokens"),
    # Two lineages have one parent with probability 1 / width. Of three, 1 in 9 have one parent and
    # 2 in 3 two: V3 = 2 + 2/3 V2 + 2/9 V3, V2 = 1 + 2/3 V2 of width 3.
    [(2, 2.0), (3, 36 / 7)],
)
def test_neutral_tokens_of_narrow_beams(width: int, tokens: float) -> None:
    assert neutral_tokens(width) == pytest.approx(tokens)


@pytest.mark.parametrize(("width", "block_size"), [(2, 4), (4, 4), (5, 16)])
def test_blocks_are_those_of_copy_on_write(width: int, block_size: int) -> None:
    """Block tables forked and copied step by step, parents drawn uniformly, all phases of an edge.

    Within three standard errors, of batches far longer than lineages last.
    """
    die, new_block = random.Random(width), iter(range(1 << 30)).__next__
    hypotheses = [[new_block()] for _ in range(width)]
    means, held = list[float](), list[int]()
    for step in range(1, 100_001):
        parents = [die.randrange(width) for _ in range(width)]
        hypotheses = [list(hypotheses[parent]) for parent in parents]
        for place, blocks in enumerate(hypotheses):
            if step % block_size == 0:
                blocks.append(new_block())
            elif sum(other[-1] == blocks[-1] for other in hypotheses) > 1:
                blocks[-1] = new_block()  # others write it too: a copy
            hypotheses[place] = blocks[-40:]
        held.append(len({block for blocks in hypotheses for block in blocks}))
        held[-1] -= len(hypotheses[0])
        if step % 5000 == 0:
            means.append(float(np.mean(held)))
            held.clear()
    draws = np.random.default_rng(0).random(20_000).tolist()
    ours = np.mean([Beams(width, neutral_tokens(width), draw).blocks(block_size) for draw in draws])
    error = float(np.std(means[1:], ddof=1) / len(means[1:]) ** 0.5)
    assert abs(ours - np.mean(means[1:])) < 3 * error + 0.02  # the draws' own error


def test_short_answers_have_no_more_of_their_own_than_they_wrote() -> None:
    assert beams(4, 1).own_tokens == 3
    assert beams(4, 2).own_tokens == 6
    assert beams(4, 1000).own_tokens == neutral_tokens(4)
    assert beams(4, 1000, 20.0).own_tokens == 60


@given(width=st.integers(2, 256))
@settings(deadline=None, max_examples=20)
def test_what_they_hold_lies_between_a_token_each_and_the_coalescent(width: int) -> None:
    """The continuous limit, 2 w H(w - 1) less one lineage, allows no triple to meet at once."""
    harmonic = sum(1 / k for k in range(1, width))
    assert width - 1 <= neutral_tokens(width) <= 2 * width * harmonic


# In the engine.


def test_a_step_computes_each_hypothesis() -> None:
    log = small_run(searched(table_of((0, 10, 5)), 3), engine=SYNC, cost=STEP)
    assert column(log, "decode_seqs") == [0, 3, 3, 3, 3]
    assert column(log, "logits") == [1, 3, 3, 3, 3]  # all begin with the prompt's logits
    steps = log.steps[0].columns()
    assert int(steps["decode_context_tokens"][1]) == 30
    assert (token_times_ns(log, 0) / MS).tolist() == [10, 20, 30, 40, 50]  # one answer
    assert log.table.all_output_tokens.tolist() == [5]


@pytest.mark.parametrize(
    ("prompt", "output", "width", "tail", "blocks"),
    [
        pytest.param(32, 9, 4, 1.0, 10 + 3, id="a last block each"),
        pytest.param(32, 9, 4, 5.0, 10 + 3 + 3, id="four tokens more: a block more each"),
        pytest.param(30, 1, 4, 5.0, 8 + 3, id="short answer"),
        pytest.param(32, 9, 1, None, 10, id="one hypothesis"),
    ],
)
def test_blocks_held(prompt: int, output: int, width: int, tail: float | None, blocks: int) -> None:
    """The prompt once, what they generated once, and what they do not share; the last token has no
    KV."""
    engine, table = replace(SYNC, fast_forward=False), table_of((0, prompt, output))
    log = small_run(searched(table, width, tail), engine=engine, cost=STEP)
    assert SYNC.replica_blocks - 1 - min(column(log, "free_blocks")) == blocks


@settings(deadline=None, max_examples=30)
@given(table=tables(), cost=COSTS)
def test_width_1_is_no_beam_search(table: RequestTable, cost: AffineCost) -> None:
    plain = replace(table, beams=None, samples=None)
    engine = EngineConfig(running_seq_limit=8, block_size=4, replica_blocks=60, max_model_len=220)
    logs = [small_run(t, engine=engine, cost=cost) for t in (plain, searched(plain, 1))]
    assert outcome(logs[0]) == outcome(logs[1])


def test_a_request_takes_a_place_for_each_hypothesis() -> None:
    """Two of three beams and one of one fit 7 places; the third waits."""
    table = searched(table_of((0, 10, 5), (0, 10, 5), (0, 10, 5), (0, 10, 5)), [3, 3, 3, 1])
    seqs = list[int]()

    def watching(view: EngineView) -> Plan:
        seqs.append(view.decode_group.num_seqs)
        batch = view.new_batch()
        batch.add_running()
        for request in list(view.waiting):
            batch.admit(request)  # whoever fits
        return batch.plan()

    log = small_run(
        table, engine=replace(SYNC, running_seq_limit=7), cost=STEP, scheduler=lambda: watching
    )
    assert max(seqs) == 7
    assert (np.array(log.requests.admitted_ns) / MS).tolist() == [0, 0, 50, 0]


def test_preempted_beams_are_computed_again() -> None:
    """Not swapped, as the blocks they share would have to come back together."""
    table = searched(table_of((0, 16, 30), (0, 16, 30)), 4, 9.0)
    engine = replace(SYNC, replica_blocks=38, preemption_mode="swap", num_cpu_blocks=100)
    engine = replace(engine, enable_prefix_caching=False)
    log = small_run(table, engine=engine, cost=STEP)
    assert list(log.requests.status) == [Status.FINISHED] * 2
    assert not log.requests.swapped
    (recompute,) = log.requests.recomputes
    request, _, row = recompute
    assert request == 1
    steps = log.steps[0].columns()
    # Its prompt and one answer so far; then all hypotheses go on with the next token.
    assert 16 < steps["prefill_tokens"][row] < 16 + 30
    assert steps["logits"][row] - steps["decode_seqs"][row] == 4


@settings(deadline=None, max_examples=30)
@given(table=tables(), timeout_ms=st.integers(1, 400), retries=st.integers(0, 2))
def test_clients_that_give_up_leave_nothing_behind(
    table: RequestTable, timeout_ms: int, retries: int
) -> None:
    """Cancelled wherever they are; audited at each plan, and everything is free at the end."""
    widths = [1 + 2 * (output > 1) for output in table.output_tokens.tolist()]
    table = searched(replace(table, samples=None, beams=None), widths)
    make, auditors = audited(MAKERS["fcfs"])
    pool = replace(small_pool(HARD), make_scheduler=make)
    clients = ClientConfig(
        e2e_timeout_ns=timeout_ms * MS, max_retries=retries, backoff_ns=MS, server_notices=True
    )
    fleet = Fleet(pools=(pool,), service=ServiceConfig(clients=clients))
    run_cluster(table, fleet)
    check_empty(auditors)


def test_beams_are_not_handed_over() -> None:
    pools = (small_pool(SYNC, role="prefill"), small_pool(SYNC, role="decode"))
    transfer = TransferConfig(
        bytes_per_token=1, prefill_nic_bytes_per_s=1e9, decode_nic_bytes_per_s=1e9
    )
    fleet = Fleet(pools=pools, transfer=transfer)
    log = run_cluster(searched(table_of((0, 10, 5)), 2), fleet)
    reason = "beam search, which is not modelled with P/D disaggregation"
    assert log.requests.reject_reasons == {0: reason}


@pytest.mark.parametrize(
    ("engine", "width", "reason"),
    [
        (replace(SYNC, running_seq_limit=3), 4, "more beams than max_num_seqs"),
        (replace(SYNC, replica_blocks=30), 4, "its beams are longer than the KV pool"),
        (
            replace(SYNC, shared_prefix_attention="cascade"),
            2,
            "beam search, which is not modelled with shared_prefix_attention",
        ),
        (
            replace(SYNC, kv_layout=KVLayout(windows=(WindowPages(10, 1),))),
            2,
            "beam search, which is not modelled with layers that keep less than all their keys and "
            "values",
        ),
    ],
)
def test_what_an_engine_does_not_take(engine: EngineConfig, width: int, reason: str) -> None:
    log = small_run(searched(table_of((0, 40, 40)), width), engine=engine, cost=STEP)
    assert log.requests.reject_reasons == {0: reason}


def test_speculation_is_refused() -> None:
    class OneEach:
        def gains(self, request: Any, sampled_tokens: int, drafts: int) -> list[int]:
            return [1] * (request.output_tokens - sampled_tokens)

    speculation = Speculation(acceptance=OneEach(), drafts_by_seqs=((1, 2),))
    engine = replace(SYNC, speculation=speculation)
    log = small_run(searched(table_of((0, 40, 40)), 2), engine=engine, cost=STEP)
    reason = "beam search, which is not modelled with speculation"
    assert log.requests.reject_reasons == {0: reason}


def test_a_table_has_answers_or_beams() -> None:
    table = table_of((0, 10, 5))
    with pytest.raises(TraceError, match="not both"):
        replace(searched(table, 2), samples=draw_lengths(table.output_tokens, 2, 1.0, 0))
    with pytest.raises(TraceError, match="one for each request"):
        searched(table, 0)


# From a scenario.


def scenario(workload: dict[str, Any], **sections: Any) -> Any:
    plain = {
        "generator": {"input_tokens": {"fixed": 256}, "output_tokens": {"fixed": 64}},
        "rate_per_s": 4,
        "num_requests": 40,
    }
    fields = {"model": "meta-llama/Llama-3.1-8B", "bands": False, **sections}
    return parse_scenario({**fields, "workload": plain | workload})


def test_beams_cost_steps_and_memory_but_give_one_answer() -> None:
    one, four = (simulate(scenario({"beam_width": width})) for width in (1, 4))
    names = ("output_tokens", "prompt_tokens")
    for name in names:
        assert getattr(one.log.table, name).tolist() == getattr(four.log.table, name).tolist()
    tpots = [run.figure("tpot") for run in (one, four)]
    assert tpots[0] is not None
    assert tpots[1] is not None
    assert tpots[0] < tpots[1] < 4 * tpots[0]  # weights are read once for all of them
    assert "beam search of width 4" in str(four.summary)
    assert any("beams of a long answer" in note for note in four.build.notes)
    assert not any("beam" in note for note in one.build.notes)


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"beam_width": 2, "n": 2}, "n answers or a beam_width, not both"),
        ({"beam_tail_tokens": 3}, "set beam_width above 1"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 2, "beam_tail_tokens": 0}, "beam_tail_tokens"),
    ],
)
def test_workloads_that_cannot_be_are_refused(workload: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        scenario(workload)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": {"speculative": {"method": "ngram"}}}, "not modelled with speculation"),
        ({"engine": {"data_parallel_size": 2}}, "data_parallel_size"),
        ({"engine": {"max_num_seqs": 3}}, "above engine.max_num_seqs 3"),
        ({"model": "google/gemma-2-9b"}, "layers that keep less"),
        (
            {"pools": [{"name": role, "role": role} for role in ("prefill", "decode")]},
            "P/D disaggregation",
        ),
    ],
)
def test_scenarios_that_are_not_modelled_are_refused(
    sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        build(scenario({"beam_width": 4}, **sections))
