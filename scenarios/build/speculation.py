"""Speculation in a scenario: its drafter, which drafts are accepted, and how many are drafted
when."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.memory.paging import is_recurrent
from costmodels.models.catalog import load_model
from costmodels.models.drafters import Drafter, make_drafter, method_facts
from costmodels.models.spec import ModelSpec
from policies import ACCEPTANCES
from policies.acceptance.tree import best_tree, ranked_rates
from scenarios.build.plugins import load_attribute, policy_label, resolve
from scenarios.build.policy_checks import describe, name_and_options, with_options
from scenarios.schema import Scenario
from scenarios.schema.fields import Policy
from scenarios.schema.speculative import Speculative
from sim.engine.config import Speculation
from sim.errors import FleetcastError, PolicyError, ScenarioError
from sim.evidence import Evidence
from sim.protocols import Acceptance
from sim.request import Request


def known_acceptance(name: str, *arguments: Any) -> Acceptance:
    """Make a built-in acceptance model. Raises `ScenarioError` for bad arguments."""
    made: Acceptance = load_attribute(ACCEPTANCES[name])(*arguments)
    return made


def own_acceptance(policy: Policy, seed: int) -> Acceptance:
    """Make a user's acceptance class from ``seed`` and its options. Raises `ScenarioError`."""
    name, options = name_and_options(policy)
    if name in ACCEPTANCES:
        raise ScenarioError(
            f"acceptance_policy {name} is made from engine.speculative.acceptance and "
            "acceptance_file; name your own as module:attribute"
        )
    label = f"acceptance {policy_label(policy)}"
    target = resolve(name, ACCEPTANCES, "acceptance")
    target = with_options(target, options, label, takes_context=True)
    try:
        made = target(seed)
    except FleetcastError:
        raise
    except Exception as error:
        raise PolicyError(f"making {label} raised {describe(error)}") from error
    if not callable(getattr(made, "gains", None)):
        raise PolicyError(f"{label} has no method gains(request, sampled_tokens, drafts)")
    return _Checked(made, label)


class _Checked:
    def __init__(self, acceptance: Any, label: str) -> None:
        self._acceptance = acceptance
        self._label = label

    def gains(self, request: Request, sampled_tokens: int, drafts: int, /) -> NDArray[np.int64]:
        """Return the user's gains, or raise a `PolicyError` that says what is wrong with them."""
        try:
            given = self._acceptance.gains(request, sampled_tokens, drafts)
            gains = np.asarray(given, np.int64).reshape(-1)
        except FleetcastError:
            raise
        except Exception as error:
            raise PolicyError(f"{self._label} raised {describe(error)}") from error
        left = request.output_tokens - sampled_tokens
        if gains.sum() != left or (gains < 1).any() or (gains > 1 + drafts).any():
            raise PolicyError(
                f"{self._label} gave request {request.index} steps of {gains.tolist()[:8]} tokens: "
                f"each must give from 1 to {1 + drafts}, and all together {left}"
            )
        return gains


_RANKS = 10
"""Candidates per position over which a single rate is spread in a tree."""
_UNFOLLOWED = ("vtc",)
"""Schedulers that count one token per sequence and decode step."""


class SpeculationPlan(NamedTuple):
    """The drafter, acceptance and scheduling with which a pool speculates."""

    drafter: Drafter
    speculation: Speculation
    acceptance: Evidence
    async_scheduling: bool
    notes: tuple[str, ...]


def speculation_of(scenario: Scenario, target: ModelSpec) -> SpeculationPlan | None:
    """Return how a pool speculates; None if nothing is drafted.

    Raises `ScenarioError` for what is not modeled.
    """
    options = scenario.engine.speculative
    if options is None:
        return None
    _check(scenario, target)
    facts = method_facts(options.method)
    rates = _by_class(options, scenario)
    most = options.num_speculative_tokens
    tree = _tree(options, rates[0], most or facts.drafts)
    most = most or (len(tree) if tree else facts.drafts)
    if tree is not None and most > len(tree):
        raise ScenarioError(
            f"engine.speculative.num_speculative_tokens is {most}; the tree has {len(tree)} nodes"
        )
    by_seqs = {1: most} | (options.drafts_by_seqs or {})
    # One engine stands for all data-parallel ranks.
    ranks = scenario.engine.data_parallel_size
    table = tuple((1 + ranks * (least - 1), by_seqs[least]) for least in sorted(by_seqs))
    most = max(drafts for _, drafts in table)
    if tree is not None and most > len(tree):
        raise ScenarioError(
            f"engine.speculative.drafts_by_seqs has {most} drafts; the tree has {len(tree)} nodes"
        )
    drafter = make_drafter(
        options.method,
        target,
        draft=None if options.model is None else load_model(options.model),
        tree=tree,
        layers=options.draft_layers,
        draft_vocab_size=options.draft_vocab_size,
    )
    acceptance = _acceptance(options, rates, tree, scenario.seed)
    return SpeculationPlan(
        drafter=drafter,
        speculation=Speculation(
            acceptance=acceptance,
            drafts_by_seqs=table,
            lookahead=drafter.has_state,
        ),
        acceptance=_evidence(options),
        async_scheduling=scenario.engine.async_scheduling is not False and facts.async_scheduling,
        notes=_notes(scenario, options, target),
    )


def _check(scenario: Scenario, target: ModelSpec) -> None:
    if is_recurrent(target):
        raise ScenarioError(
            f"engine.speculative is not modelled beside the recurrent layers of {target.name}: "
            "rejected tokens would have to be taken out of their states again"
        )
    if any(group.skips_prompt for group in target.layers):
        raise ScenarioError(
            f"engine.speculative is not modelled beside {target.name}: prompts leave it early"
        )
    name, _ = name_and_options(scenario.engine.scheduler)
    if name in _UNFOLLOWED:
        raise ScenarioError(
            f"engine.speculative with scheduler {name} is not modelled: it counts a token a decode "
            "step"
        )
    if scenario.engine.shared_prefix_attention != "none":
        raise ScenarioError(
            "engine.speculative is not modelled together with engine.shared_prefix_attention "
            f"{scenario.engine.shared_prefix_attention}"
        )


def _by_class(options: Speculative, scenario: Scenario) -> list[Any]:
    """Return the rates of each class in the workload's order; one entry if there are no classes."""
    given = options.acceptance
    if given is None:
        return [method_facts(options.method).acceptance]
    if not isinstance(given, dict):
        return [given]
    names = [request_class.name for request_class in scenario.workload.classes]
    unknown = sorted(set(given) - {*names, "default"})
    if unknown:
        known = ", ".join(names) or "none, the workload has no classes"
        raise ScenarioError(
            f"engine.speculative.acceptance names {', '.join(unknown)}; classes: {known}"
        )
    lacking = [name for name in names if name not in given and "default" not in given]
    if lacking or not (names or "default" in given):
        raise ScenarioError(
            "engine.speculative.acceptance has no rate for "
            f"{', '.join(lacking) or 'requests without a class'}: add default"
        )
    return [given.get(name, given.get("default")) for name in names] or [given["default"]]


def _chain_rates(rates: Any) -> list[float]:
    """Return one rate per position."""
    found = list(rates) if isinstance(rates, Sequence) else [rates]
    return [rate[0] if isinstance(rate, Sequence) else rate for rate in found]


def _ranked(rates: Any) -> list[list[float]]:
    """Return rates by depth and rank."""
    found = list(rates) if isinstance(rates, Sequence) else [rates]
    return [
        list(rate) if isinstance(rate, Sequence) and len(rate) > 1 else _spread(rate)
        for rate in found
    ]


def _spread(rate: Any) -> list[float]:
    return ranked_rates(rate[0] if isinstance(rate, Sequence) else rate, _RANKS)


def _tree(options: Speculative, rates: Any, nodes: int) -> tuple[tuple[int, ...], ...] | None:
    if options.tree is None and options.method != "medusa":
        return None
    if options.tree is None or options.tree == "best":
        depth = method_facts(options.method).heads if options.method == "medusa" else nodes
        return best_tree(_ranked(rates), nodes, depth)
    return options.tree


def _acceptance(
    options: Speculative,
    rates: list[Any],
    tree: tuple[tuple[int, ...], ...] | None,
    seed: int,
) -> Acceptance:
    if options.acceptance_policy is not None:
        return own_acceptance(options.acceptance_policy, seed)
    if options.acceptance_file is not None:
        return _recorded(Path(options.acceptance_file), seed)
    if tree is not None:
        return known_acceptance("tree", tree, [_ranked(of_class) for of_class in rates], seed)
    return known_acceptance("chain", [_chain_rates(of_class) for of_class in rates], seed)


def _recorded(path: Path, seed: int) -> Acceptance:
    """Read the accepted lengths of a CSV file. Raises `ScenarioError`."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ScenarioError(f"cannot read the accepted lengths of {path}: {reason}") from None
    pool: list[int] = []
    by_request: dict[int, list[int]] = {}
    for line, row in enumerate(rows, 2):
        try:
            accepted = int(row["accepted"])
            if row.get("request"):
                by_request.setdefault(int(row["request"]), []).append(accepted)
        except (KeyError, TypeError, ValueError):
            raise ScenarioError(
                f"{path}:{line}: needs a whole number in column accepted, and in request if there "
                "is one"
            ) from None
        pool.append(accepted)
    return known_acceptance("replay", pool, by_request, seed)


def _evidence(options: Speculative) -> Evidence:
    if options.acceptance_file is not None:
        return Evidence(
            label="reported", source=f"recorded in {Path(options.acceptance_file).name}"
        )
    if options.acceptance_policy is not None:
        label = policy_label(options.acceptance_policy)
        return Evidence(label="assumed", source=f"acceptance {label}")
    if options.acceptance is None:
        return method_facts(options.method).evidence
    if options.acceptance_source is not None:
        return Evidence(label="reported", source=options.acceptance_source)
    return Evidence(label="assumed", source="the scenario's engine.speculative.acceptance")


def _notes(scenario: Scenario, options: Speculative, target: ModelSpec) -> tuple[str, ...]:
    facts = method_facts(options.method)
    notes = []
    given = (options.acceptance, options.acceptance_file, options.acceptance_policy)
    if all(one is None for one in given):
        notes.append(f"acceptance rates are {facts.evidence.label}: {facts.evidence.source}")
    if options.method == "medusa" and options.tree is None:
        notes.append("medusa drafts the tree of the likeliest nodes by its acceptance rates")
    if scenario.engine.async_scheduling is not False and not facts.async_scheduling:
        notes.append(
            f"async scheduling is off: the engine cannot plan ahead of {options.method} drafts"
        )
    if options.method == "mtp" and not target.mtp:
        notes.append(f"{target.name} has no MTP module; one like its last layer is taken")
    if any(drafts == 0 for drafts in (options.drafts_by_seqs or {}).values()):
        notes.append(
            "while nothing is drafted the drafter does not run for decodes; what it missed is not "
            "made up for when it drafts again"
        )
    return tuple(notes)
