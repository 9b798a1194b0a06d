"""Speculation in the engine: output unchanged, nothing lost, jumped equals stepped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policies import ROUTERS, SCHEDULERS
from policies.acceptance.chain import Chain
from policies.acceptance.replay import Replay
from policies.acceptance.tree import Tree
from sim.cluster import Fleet, RunLog
from sim.engine_view import EngineConfig
from sim.protocols import Acceptance
from sim.request_table import RequestTable
from sim.speculation import Speculation
from tests.helpers import AffineCost, small_run
from tests.service_runs import fleets
from tests.test_conservation import MAKERS, audited, check_run_to_the_end
from tests.test_faults import check_all_is_conserved
from tests.test_jumping import COSTS, ENGINES, outcome, tables

PATHS = [(0,), (1,), (0, 0), (2,), (0, 1), (0, 0, 0)]
ACCEPTANCES: dict[str, Acceptance] = {
    "one rate": Chain([[0.7]]),
    "none": Chain([[0.0]]),
    "all": Chain([[1.0]]),
    "by class and place": Chain([[0.9, 0.5], [0.3], [0.8, 0.7, 0.6]]),
    "tree": Tree(PATHS, [[[0.5, 0.2, 0.1]]]),
    "replayed": Replay([0, 3, 1, 5, 2], {1: [2, 0]}),
}
SPECULATIONS = st.builds(
    Speculation,
    acceptance=st.sampled_from(list(ACCEPTANCES.values())),
    drafts_by_seqs=st.sampled_from(
        [((1, 3),), ((1, 5), (2, 2), (4, 0)), ((1, 0), (3, 4)), ((1, 1), (2, 5))]
    ),
    lookahead=st.booleans(),
)
PLAIN_LAYOUTS = ENGINES.filter(
    lambda engine: not engine.kv_layout.fixed_pages and not engine.aligns_chunks
)
SPECULATING = st.builds(
    lambda engine, speculation: replace(
        engine, shared_prefix_attention="none", speculation=speculation
    ),
    PLAIN_LAYOUTS,
    SPECULATIONS,
)
POLICIES = [name for name in MAKERS if name != "vtc"]
FOLLOWED = tuple(name for name in SCHEDULERS if name != "vtc")
over_random_runs = given(
    table=tables(),
    engine=SPECULATING,
    cost=COSTS,
    scheduler=st.sampled_from(POLICIES),
    router=st.sampled_from(list(ROUTERS)),
    replicas=st.integers(1, 3),
)
moderately = settings(
    deadline=None,
    max_examples=70,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def everything(log: RunLog) -> dict[str, Any]:
    """All that must not depend on jumping, of speculation too."""
    found = outcome(log)
    for name in ("draft_tokens", "accepted_tokens"):
        found[name] = [int(_whole(s, name).sum()) for s in log.steps]
    found["rounds"] = dict(log.requests.rounds)
    found["context"] = [
        int((s.column("steps") * s.column("decode_context_tokens")).sum())
        + int(s.column("context_rise").sum())
        for s in log.steps
    ]
    return found


def _whole(steps: Any, name: str) -> Any:
    values = steps.column(name)
    return values if name == "accepted_tokens" else values * steps.column("steps")


@pytest.mark.parametrize("scheduler", FOLLOWED)
@settings(moderately, max_examples=30)
@given(
    table=tables(),
    engine=SPECULATING,
    cost=COSTS,
    replicas=st.integers(1, 2),
    until_ns=st.sampled_from([None, None, 300_000_000]),
)
def test_jumped_equals_stepped(
    scheduler: str,
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    replicas: int,
    until_ns: int | None,
) -> None:
    def run(fast_forward: bool) -> dict[str, Any]:
        config = replace(engine, fast_forward=fast_forward)
        log = small_run(
            table,
            engine=config,
            cost=cost,
            scheduler=scheduler,
            replicas=replicas,
            until_ns=until_ns,
        )
        return everything(log)

    assert run(True) == run(False)


@pytest.mark.parametrize("fast_forward", [True, False], ids=["jumping", "stepping"])
@moderately
@over_random_runs
def test_a_run_to_its_end_conserves_everything(
    table: RequestTable,
    engine: EngineConfig,
    cost: AffineCost,
    scheduler: str,
    router: str,
    replicas: int,
    fast_forward: bool,
) -> None:
    """Requests, tokens, blocks and time balance; each answer token is given once."""
    make, auditors = audited(MAKERS[scheduler])
    config = replace(engine, fast_forward=fast_forward)
    log = small_run(
        table, engine=config, cost=cost, scheduler=make, router=router, replicas=replicas
    )
    check_run_to_the_end(log, auditors)


@moderately
@given(
    table=tables(),
    fleet=fleets(SPECULATING, FOLLOWED),
    until_ns=st.sampled_from([None, None, 300_000_000]),
)
def test_all_is_conserved_whatever_fails(
    table: RequestTable, fleet: Fleet, until_ns: int | None
) -> None:
    """Crashes, clients that give up, prompts computed elsewhere."""
    check_all_is_conserved(table, fleet, until_ns)
