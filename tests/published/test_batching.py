"""Published results of batching policies: matches are asserted, and misses are counted."""

from __future__ import annotations

import pytest

from tests.published import beam_blocks, chunk_sizes, orca, vllm_batches
from tests.published.rows import met


def test_a_chunk_of_512_costs_prefill_at_most_what_is_published() -> None:
    assert 0 < chunk_sizes.overhead(2048) < chunk_sizes.overhead(512) < 0.25
    assert chunk_sizes.overhead(64) > 0.5


@pytest.mark.slow
def test_blocks_that_answers_and_beams_share() -> None:
    (section,) = beam_blocks.sections()
    assert met(section.rows) == "6 of 6"
    ours = [row.ours for row in section.rows]
    assert ours == sorted(ours)  # more sequences save more, and beams more than answers


@pytest.mark.slow
def test_batched_requests_of_orca_and_vllm() -> None:
    """Missed: vLLM at 2/s, -33%; our engine is faster than that of 2023 and has no queue."""
    published, _ = vllm_batches.rows(vllm_batches.RATE_PER_S, 0.30)
    saturated, used = vllm_batches.rows(vllm_batches.SATURATED_PER_S, 0.30)
    assert met(published) == "3 of 4"
    assert met(saturated) == "4 of 4"
    for rows in (published, saturated):
        assert rows[0].ours == 7.0
        assert [row.ours for row in rows] == sorted(row.ours for row in rows)
    assert all(abs(row.error) < 0.25 for row in used)


@pytest.mark.slow
def test_orca_serves_an_order_of_magnitude_more_than_static_batches() -> None:
    """Missed: the 37 times of the paper, -54%; the ratio is read off the steep end of curves."""
    alone_s = orca.median_s_per_token(orca.pool(orca.ORCA), 0.005)
    served, static = orca.rates(2 * alone_s)
    assert 10 < served / max(static.values()) < 37


@pytest.mark.slow
def test_both_ends_of_the_chunk_sizes_are_bad() -> None:
    """The best are the paper's own choices: 512 for the strict target, 2,048 for the relaxed."""
    for target, best, last in (("strict", 512, 8192), ("relaxed", 2048, 8192)):
        found = chunk_sizes.sweep(chunk_sizes.TARGETS_S[target], (32, 512, 2048, last))
        assert max(found, key=lambda chunk: found[chunk]) == best
        assert found[32] < 0.3 * found[best]
        assert found[last] < 0.9 * found[best]
