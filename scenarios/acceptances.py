"""Acceptances by name: ours, or a user's own as ``module:attribute``, whose steps are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies import ACCEPTANCES
from scenarios.guard import describe
from scenarios.plugins import load_attribute, policy_label, resolve
from scenarios.policy_options import name_and_options, with_options
from scenarios.schema.fields import Policy
from sim.errors import FleetcastError, PolicyError, ScenarioError
from sim.protocols import Acceptance
from sim.request import Request


def known_acceptance(name: str, *arguments: Any) -> Acceptance:
    """One of ours. Raises ScenarioError for arguments that cannot be."""
    made: Acceptance = load_attribute(ACCEPTANCES[name])(*arguments)
    return made


def own_acceptance(policy: Policy, seed: int) -> Acceptance:
    """A user's class, made with ``seed`` and its options. Raises ScenarioError."""
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
        """The user's, or a PolicyError that says what is wrong with it."""
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
