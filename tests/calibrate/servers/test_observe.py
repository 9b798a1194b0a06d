"""What is sent to a server, and what is noted of its answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from calibrate.servers.client import Answer, Server, ServerError
from calibrate.servers.design import Phase, closed_phases, poisson_phases
from calibrate.servers.observe import (
    Observed,
    Observer,
    load_observation,
    plan_lines,
    save_observation,
)
from sim.errors import TraceError
from tests.calibrate.servers.fake_server import FakeEngine, running


def observer_of(url: str) -> Observer:
    """Return an observer of the stand-in's model that says nothing."""
    return Observer(Server(url=url, model="tiny"), 32000, seed=0, say=lambda text: None)


def test_an_answer_has_the_times_of_the_servers_law() -> None:
    engine = FakeEngine(fixed_s=0.03, prefill_s_per_token=1e-5, step_s=0.02, step_s_per_seq=0)
    with running(engine) as url:
        server = Server(url=url, model="tiny")
        assert server.check() == ["tiny"]
        answer = server.complete(list(range(1000)), 6)
    assert (answer.prompt_tokens, answer.output_tokens) == (1000, 6)
    # a busy machine sleeps longer than it is asked to, and reads a first token late
    assert 0.035 <= answer.ttft_s < 0.3
    assert answer.tpot_s is not None
    assert 0.015 <= answer.tpot_s < 0.1
    (body,) = engine.bodies
    assert body["ignore_eos"] is True
    assert body["max_tokens"] == 6


def test_a_server_that_takes_text_only_is_sent_text() -> None:
    engine = FakeEngine(fixed_s=0, step_s=0.001)
    engine.takes_token_ids = False
    with running(engine) as url:
        observer = observer_of(url)
        observer._settle()
        one = observer._send(Phase(name="a", concurrency=2, lengths=((20, 3),) * 4))
    assert [answer.prompt_tokens for answer in one.answers] == [20] * 4


def test_clients_wait_for_their_answers() -> None:
    engine = FakeEngine(fixed_s=0.05, step_s=0.001)
    with running(engine) as url:
        one = observer_of(url)._send(Phase(name="a", concurrency=2, lengths=((20, 1),) * 6))
    for answer in one.answers:
        before = [other for other in one.answers if other.sent_s < answer.sent_s < other.last_s]
        assert len(before) <= 1


def test_observations_are_read_as_they_were_written(tmp_path: Path) -> None:
    with running(FakeEngine(fixed_s=0, step_s=0.001)) as url:
        one = observer_of(url)._send(Phase(name="a", concurrency=1, lengths=((20, 3),) * 2))
    path = tmp_path / "seen.json"
    save_observation([one], {"model": "tiny"}, path)
    (again,), about = load_observation(path)
    assert about == {"model": "tiny"}
    assert again.phase.lengths == one.phase.lengths
    for read, seen in zip(again.answers, one.answers, strict=True):
        assert read.ttft_s == pytest.approx(seen.ttft_s, abs=2e-6)
    path.write_text('{"format": "other"}')
    with pytest.raises(TraceError, match="calibrate observe"):
        load_observation(path)


def test_errors_name_the_server() -> None:
    with pytest.raises(ServerError, match=r"127\.0\.0\.1:9"):
        Server(url="http://127.0.0.1:9", model="tiny").check()
    with pytest.raises(ServerError, match="is not a URL"):
        Server(url="localhost:8000", model="tiny").check()


def test_phases_fit_the_model_and_the_limit_of_clients() -> None:
    for phase in closed_phases(1500, 16):
        assert phase.concurrency <= 16
        assert max(map(sum, phase.lengths)) < 1500
    assert any(phase.held_out for phase in closed_phases(8192, 256))
    assert "by 1 to 16 clients" in plan_lines(8192, 16)[1]


def test_poisson_phases_offer_their_shares_of_the_rate_seen() -> None:
    draws = [(7919 * i % 10_007 + 0.5) / 10_008 for i in range(30_000)]
    light, busy = poisson_phases(20.0, 60.0, draws)
    assert len(light.lengths) == pytest.approx(0.3 * 20 * 60, rel=0.2)
    assert len(busy.lengths) == pytest.approx(0.6 * 20 * 60, rel=0.2)
    assert light.held_out
    assert busy.arrivals_s[-1] < 60


def test_a_server_that_serves_no_more_is_not_sent_more_clients() -> None:
    answer = answer_after(0.1)
    small = Phase(name="batch_4", concurrency=4, lengths=((8, 10),) * 4)
    rates = [
        Observed(phase=small, answers=(answer,) * 4),
        Observed(phase=replace(small, name="batch_16"), answers=(answer,) * 4),
    ]
    observer = observer_of("http://127.0.0.1:9")
    assert observer._is_full(rates)
    assert not observer._is_full(rates[:1])
    waiting = Observed(phase=small, answers=(answer_after(30.0),) * 4)
    assert observer._is_full([waiting])


def answer_after(ttft_s: float) -> Answer:
    """Return an answer of ten tokens with this TTFT."""
    return Answer(
        sent_s=0.0, prompt_tokens=8, output_tokens=10, first_s=ttft_s, last_s=ttft_s + 0.1
    )
