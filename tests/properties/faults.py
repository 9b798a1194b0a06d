"""Runs that fail and reject requests, and the quantities they must conserve."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.books.ledger import time_books
from sim.books.token_times import token_times_ns
from sim.fleet.cluster import Fleet, RunLog, run_cluster
from sim.request import Status
from sim.request_table import RequestTable
from tests.properties.engines import outcome
from tests.properties.helpers import decode_gaps
from tests.properties.service_runs import stepped

FINAL = {Status.FINISHED, Status.REJECTED, Status.FAILED, Status.ABANDONED}


def whole_outcome(log: RunLog) -> dict[str, Any]:
    """`outcome`, and what the service around the engines did."""
    service, requests = log.service, log.requests
    assert service is not None
    return {
        **outcome(log),
        "replica": list(requests.replica),
        "reasons": requests.reject_reasons | requests.fail_reasons,
        "sent": service.sent,
        "retries": (service.client_retries, service.proxy_retries, service.retries_denied),
        "outages": service.outages,
        "lives": service.lives,
        "links": log.link_bytes,
        "sent again": requests.sent_ns,
    }


def check_all_is_conserved(table: RequestTable, fleet: Fleet, until_ns: int | None) -> None:
    """Jumped and stepped, to its end or to a horizon."""
    log = run_cluster(table, fleet, until_ns=until_ns)
    assert whole_outcome(log) == whole_outcome(
        run_cluster(table, stepped(fleet), until_ns=until_ns)
    )
    requests = log.requests
    status = np.frombuffer(requests.status, np.int8)
    if until_ns is None:
        assert set(status.tolist()) <= FINAL
    for steps, pool in zip(log.steps, log.fleet.pool_of, strict=True):
        free = steps.column("free_blocks")
        assert ((free >= 0) & (free <= pool.engine.num_gpu_blocks - 1)).all()
        assert (np.diff(steps.column("gpu_end_ns")) >= 0).all()
    finished = status == Status.FINISHED
    arrival_ns = np.frombuffer(requests.arrival_ns, np.int64)
    books = time_books(log)
    for posted, name in ((books.e2e_ns, "finished_ns"), (books.ttft_ns, "first_token_ns")):
        lasted_ns = np.frombuffer(getattr(requests, name), np.int64) - arrival_ns
        assert (posted.sum(axis=1)[finished] == lasted_ns[finished]).all()
        assert (posted >= 0).all()
    for request in np.flatnonzero(finished).tolist():
        times = token_times_ns(log, request)
        assert len(times) == table.output_tokens[request]
        if len(times):
            assert (np.diff(times) >= 0).all()
            assert times[0] == requests.first_token_ns[request]
    if table.samples is None:
        assert decode_gaps(log)[1].sum() == np.maximum(table.output_tokens[finished] - 1, 0).sum()
    moved = [sum(b for n, b in log.link_bytes.items() if n.startswith(w)) for w in ("out", "in")]
    assert moved[0] == moved[1] == log.link_bytes.get("core", moved[0])
