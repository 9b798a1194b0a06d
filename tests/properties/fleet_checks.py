"""What a run of a fleet must conserve, whatever is turned away, given up or fails in it."""

from __future__ import annotations

import numpy as np

from sim.books.ledger import time_books
from sim.books.token_times import token_times_ns
from sim.fleet.cluster import RunLog
from sim.request import Status
from tests.properties.token_gaps import decode_gaps

FINAL_STATUSES = {Status.FINISHED, Status.REJECTED, Status.FAILED, Status.ABANDONED}


def check_fleet_run(log: RunLog, *, to_its_end: bool) -> None:
    """Assert that requests, blocks, tokens, nanoseconds and bytes balance.

    ``to_its_end`` says that no horizon cut the run, so every request has a final status.
    """
    requests = log.requests
    status = np.frombuffer(requests.status, np.int8)
    if to_its_end:
        assert set(status.tolist()) <= FINAL_STATUSES
    for steps, pool in zip(log.steps, log.fleet.pool_of, strict=True):
        free = steps.column("free_blocks")
        assert ((free >= 0) & (free <= pool.engine.replica_blocks - 1)).all()
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
        assert len(times) == log.table.output_tokens[request]
        if len(times):
            assert (np.diff(times) >= 0).all()
            assert times[0] == requests.first_token_ns[request]
    if log.table.samples is None:
        assert (
            decode_gaps(log)[1].sum() == np.maximum(log.table.output_tokens[finished] - 1, 0).sum()
        )
    moved = [sum(b for n, b in log.link_bytes.items() if n.startswith(w)) for w in ("out", "in")]
    assert moved[0] == moved[1] == log.link_bytes.get("core", moved[0])
