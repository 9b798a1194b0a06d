"""Acceptance of drafts: closed forms, trees, records, and draws that belong to a request."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from costmodels.models.drafters import method_facts
from policies.acceptance.chain import Chain
from policies.acceptance.replay import Replay
from policies.acceptance.rounds import survivals, tokens_per_step
from policies.acceptance.tree import Tree, best_tree, path_chance, ranked_rates, tree_survivals
from sim.draws import uniform, uniforms
from sim.engine.config import Speculation
from sim.errors import ScenarioError
from sim.protocols import Acceptance
from sim.request import Request

TOKENS = 200_000
TREE = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0)]
RATES = [[0.6, 0.15, 0.05], [0.5, 0.2], [0.4, 0.1]]


def request(index: int = 0, *, output_tokens: int = TOKENS, tenant: int = 0) -> Request:
    """One that has its first token."""
    return Request(index, 0, 100, output_tokens, tenant=tenant, num_sampled_tokens=1)


def check_mean(acceptance: Acceptance, drafts: int, expected: float, tenant: int = 0) -> None:
    """Mean tokens a step within three standard errors; the cut last step is left out."""
    gains = np.array(acceptance.gains(request(tenant=tenant), 1, drafts))
    assert gains.sum() == TOKENS - 1
    whole = gains[:-1]
    assert abs(whole.mean() - expected) <= 3 * whole.std() / np.sqrt(len(whole)) + 1e-12


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("drafts", [1, 2, 5, 10])
def test_one_rate_gives_the_geometric_sum(rate: float, drafts: int) -> None:
    """(1 - a^(g+1)) / (1 - a)."""
    closed = drafts + 1 if rate == 1 else (1 - rate ** (drafts + 1)) / (1 - rate)
    assert tokens_per_step(survivals([rate], drafts)) == pytest.approx(closed)
    check_mean(Chain([[rate]]), drafts, closed)


def test_rates_by_place_give_the_survival_sum() -> None:
    """1 + a1 + a1 a2 + ..., the last rate standing for further places; by class."""
    rates = [0.9, 0.7, 0.5]
    for drafts in (1, 3, 6):
        places = [*rates, 0.5, 0.5, 0.5][:drafts]
        expected = 1 + sum(itertools.accumulate(places, lambda a, b: a * b))
        check_mean(Chain([[0.1], rates]), drafts, expected, tenant=1)
    check_mean(Chain([[0.25], rates]), 1, 1.25, tenant=0)


@pytest.mark.parametrize("drafts", [1, 4, 6, 9])
def test_a_tree_gives_the_sum_over_its_nodes(drafts: int) -> None:
    """1 + the product of the rates on each node's path; a walk by hand says the same."""
    expected = 1 + sum(path_chance(path, RATES) for path in TREE[:drafts])
    check_mean(Tree(TREE, [RATES]), drafts, expected)
    rng, nodes = np.random.default_rng(1), set(TREE[:drafts])
    depths = []
    for _ in range(20_000):
        path: tuple[int, ...] = ()
        while True:
            row = RATES[min(len(path), 2)]
            rank = int(np.searchsorted(np.cumsum(row), rng.random(), side="right"))
            if (*path, rank) not in nodes:
                break
            path = (*path, rank)
        depths.append(len(path))
    found = np.bincount(depths, minlength=4)[::-1].cumsum()[::-1] / len(depths)
    for level, chance in enumerate(tree_survivals(TREE[:drafts], RATES), 1):
        error = np.sqrt(chance * (1 - chance) / len(depths))
        assert abs(found[level] - chance) <= 4 * error


def test_the_best_tree_is_the_best() -> None:
    """No other node is likelier than one it has; parents come first."""
    rates = [ranked_rates(0.6, 4), ranked_rates(0.5, 4)]
    tree = best_tree(rates, 12, 3)
    chances = [path_chance(path, rates) for path in tree]
    assert chances == sorted(chances, reverse=True)
    every = [p for n in (1, 2, 3) for p in itertools.product(range(4), repeat=n)]
    assert sum(chances) == pytest.approx(
        sum(sorted((path_chance(path, rates) for path in every), reverse=True)[:12])
    )
    Tree(tree, [rates])


def test_a_record_is_replayed() -> None:
    """A request's own steps over again; others from a place of theirs; never more than drafted."""
    replay = Replay([0, 1, 2, 3], {7: [2, 0]})
    assert list(replay.gains(request(7, output_tokens=10), 1, 5)) == [3, 1, 3, 1, 1]
    assert list(replay.gains(request(7, output_tokens=10), 1, 1)) == [2, 1, 2, 1, 2, 1]
    others = [list(replay.gains(request(i, output_tokens=21), 1, 5)) for i in range(7)]
    assert {tuple(gains[:2]) for gains in others} <= {(1, 2), (2, 3), (3, 4), (4, 1)}
    assert len({tuple(gains) for gains in others}) > 1
    later = request(7, output_tokens=10)
    later.rounds = b"\x03"
    assert list(replay.gains(later, 4, 5)) == [1, 3, 1, 1]


def test_draws_belong_to_a_request() -> None:
    """Draws do not depend on other requests, and continue where a request was interrupted."""
    assert [uniform(3, 9, i) for i in range(5, 9)] == uniforms(3, 9, 4, 5).tolist()
    assert uniforms(3, 9, 2000)[1999] == uniform(3, 9, 1999)
    chain = Chain([[0.7]])
    whole = list(chain.gains(request(4, output_tokens=500), 1, 4))
    again = request(4, output_tokens=500)
    again.rounds = bytes(whole[:30])
    assert list(chain.gains(again, 1 + sum(whole[:30]), 4)) == whole[30:]
    assert list(chain.gains(request(5, output_tokens=500), 1, 4)) != whole


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Chain([[1.2]]), "from 0 to 1"),
        (lambda: Chain([[]]), "from 0 to 1"),
        (lambda: Tree([(0, 0)], [[[0.5]]]), "before its parent"),
        (lambda: Tree([(0,), (0,)], [[[0.5]]]), "stands twice"),
        (lambda: Tree([(0,)], [[[0.7, 0.4]]]), "add up to 1"),
        (lambda: Replay([]), "at least one step"),
        (lambda: Replay([1, -1]), "negative"),
        (lambda: Speculation(acceptance=Chain([[0.5]]), drafts_by_seqs=((2, 3),)), "start at 1"),
        (lambda: Speculation(acceptance=Chain([[0.5]]), drafts_by_seqs=((1, 999),)), "0 to 250"),
    ],
)
def test_what_cannot_be_is_refused(make: object, said: str) -> None:
    """With a message that says what would be right."""
    with pytest.raises(ScenarioError, match=said):
        make()  # type: ignore[operator]


def test_a_table_says_how_much_is_drafted() -> None:
    """From so many sequences on."""
    table = ((1, 5), (8, 2), (32, 0))
    speculation = Speculation(acceptance=Chain([[0.5]]), drafts_by_seqs=table)
    found = [speculation.drafts(seqs) for seqs in (0, 1, 7, 8, 31, 32, 1000)]
    assert found == [5, 5, 5, 2, 2, 0, 0]
    assert speculation.most_drafts == 5


def test_default_rates_give_what_their_sources_report() -> None:
    """Medusa 2.31 and prompt lookup 1.75 tokens a step (Spec-Bench); an MTP module 1.85."""
    found = {}
    for method in ("medusa", "ngram", "mtp"):
        facts = method_facts(method)
        if method == "medusa":
            tree = best_tree(facts.acceptance, facts.drafts, facts.heads)
            assert len(tree) == facts.drafts
            found[method] = 1 + float(tree_survivals(tree, facts.acceptance).sum())
        else:
            rates = [of_place[0] for of_place in facts.acceptance]
            found[method] = tokens_per_step(survivals(rates, facts.drafts))
    assert found == pytest.approx({"medusa": 2.31, "ngram": 1.75, "mtp": 1.85}, rel=0.02)
