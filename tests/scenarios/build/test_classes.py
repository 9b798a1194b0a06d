"""Several request classes in one workload: each behaves as it would alone."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from scenarios.build.workload.table import build_table
from scenarios.files.load import parse_scenario
from scenarios.run.simulate import simulate
from scenarios.schema import Scenario
from sim.errors import ScenarioError
from sim.request_table import RequestTable, request_table
from tests.properties.tables import chains_of
from workloads.merge import merge, split_blocks

CHAT = {"name": "chat", "preset": "azure-conv", "rate_per_s": 6, "slo": {"ttft_s": 0.3}}
BATCH = {
    "name": "batch",
    "generator": {"input_tokens": {"fixed": 4000}, "output_tokens": {"fixed": 200}},
    "rate_per_s": 0.5,
    "priority": 5,
    "slo": {"e2e_s": 60},
}


def scenario(*classes: dict[str, Any], **workload: Any) -> Scenario:
    values = {
        "model": "llama-3.1-8b",
        "workload": {"classes": list(classes), "duration_s": 40, **workload},
        "slo": {"tpot_s": 0.05},
        "bands": False,
    }
    return parse_scenario(values)


def rows_of(table: RequestTable, name: str) -> list[tuple[int, int, int]]:
    chosen = table.class_index == table.class_names.index(name)
    columns = (table.arrival_ns, table.prompt_tokens, table.output_tokens)
    return list(zip(*(c[chosen].tolist() for c in columns), strict=True))


def test_a_class_does_not_depend_on_the_others() -> None:
    both, alone = build_table(scenario(CHAT, BATCH)), build_table(scenario(CHAT))
    assert rows_of(both, "chat") == rows_of(alone, "chat")
    assert (np.diff(both.arrival_ns) >= 0).all()
    assert set(both.priority[both.class_index == 1].tolist()) == {5}


def test_the_rate_of_the_workload_keeps_the_mix() -> None:
    table = build_table(scenario(CHAT, BATCH, rate_per_s=13, duration_s=400))
    counts = np.bincount(np.asarray(table.class_index))
    assert counts.sum() / 400 == pytest.approx(13, rel=0.05)
    assert counts[0] / counts[1] == pytest.approx(12, rel=0.15)


def test_the_summary_has_every_class_with_its_targets() -> None:
    result = simulate(scenario(CHAT, BATCH))
    classes = {c["name"]: c for c in result.summary["classes"]}
    assert classes["chat"]["targets"] == {"ttft_s": 0.3, "tpot_s": 0.05}
    assert classes["batch"]["targets"] == {"tpot_s": 0.05, "e2e_s": 60}
    arrived = result.summary["requests"]["arrived"]
    assert sum(c["arrived"] for c in classes.values()) == arrived
    good = sum(c["attainment"] * c["arrived"] for c in classes.values())
    assert result.summary["slo"]["attainment"] == pytest.approx(good / arrived)
    assert sorted(result.requests["class"].unique()) == ["batch", "chat"]


@pytest.mark.parametrize(
    ("classes", "workload", "words"),
    [
        ([CHAT, CHAT], {}, "two classes are named 'chat'"),
        ([CHAT], {"preset": "azure-conv"}, "exactly one of"),
        ([CHAT | {"max_concurrency": 3}], {}, "not for one class of it"),
        (
            [{"name": "x", "preset": "azure-conv"}],
            {"rate_per_s": 3},
            "class 'x' gives none",
        ),
    ],
)
def test_what_classes_cannot_say(
    classes: list[dict[str, Any]], workload: dict[str, Any], words: str
) -> None:
    with pytest.raises(ScenarioError, match=words):
        scenario(*classes, **workload)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_merging_keeps_prefixes_sessions_and_order(data: st.DataObject) -> None:
    parts = {name: data.draw(tables(), label=name) for name in ("a", "b", "c")}
    table = merge(parts)
    assert len(table) == sum(map(len, parts.values()))
    assert table.after is not None
    for index, part in enumerate(parts.values()):
        # Output lengths number a part's rows: where each of them stands now.
        of_part = np.flatnonzero(table.class_index == index)
        rows = of_part[np.argsort(table.output_tokens[of_part])]
        assert np.array_equal(table.arrival_ns[rows], part.arrival_ns)
        assert np.array_equal(table.prompt_tokens[rows], part.prompt_tokens)
        assert part.after is not None
        assert table.after[rows].tolist() == [-1 if a < 0 else rows[a] for a in part.after]
        shared, own = _shared_tokens(table, rows), _shared_tokens(part, np.arange(len(part)))
        assert np.array_equal(shared, own)
    assert table.chains is not None
    assert table.class_index is not None
    across = _shared_tokens(table, np.arange(len(table)))
    assert not across[table.class_index[:, None] != table.class_index].any()


def test_splitting_blocks_keeps_what_prefixes_share() -> None:
    chains = chains_of([[1, 2, 3], [1, 2, 9], [4]], [22, 24, 3], 8)
    small = split_blocks(chains, 4)
    assert np.diff(small.offsets).tolist() == [6, 6, 1]
    first, second = small.ids[:6].tolist(), small.ids[6:12].tolist()
    assert first[:4] == second[:4]
    assert not set(first[4:]) & set(second[4:])


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    n = draw(st.integers(1, 8))
    arrival = np.cumsum(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    after = np.array([draw(st.integers(-1, i - 1)) for i in range(n)])
    block_tokens = draw(st.sampled_from([4, 8]))
    tree = [draw(st.lists(st.integers(0, 1), min_size=1, max_size=4)) for _ in range(n)]
    # Equal ids must mean equal prefixes: an id is its whole path.
    chains = [[int("1" + "".join(map(str, p[: i + 1])), 2) for i in range(len(p))] for p in tree]
    tokens = [len(chain) * block_tokens for chain in chains]
    return request_table(
        np.where(after < 0, arrival, 0).astype(float),
        np.array(tokens),
        np.arange(n) + 1,
        chains=chains_of(chains, tokens, block_tokens),
        after=after,
        think_ns=np.arange(n),
        session=np.arange(n) // 2,
    )


def _shared_tokens(table: RequestTable, rows: Any) -> Any:
    """Tokens of prefix that each pair of rows shares, ``[n, n]``."""
    assert table.chains is not None
    c = table.chains
    chains = [c.ids[c.offsets[r] : c.offsets[r + 1]].tolist() for r in rows]

    def shared(x: list[int], y: list[int]) -> int:
        same = 0
        for i, j in zip(x, y, strict=False):
            if i != j:
                break
            same += c.block_tokens
        return same

    return np.array([[shared(x, y) for y in chains] for x in chains])
