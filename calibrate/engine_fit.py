"""Fits an engine profile and a GPU's efficiency to step logs: GPU and host terms in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibrate.engine_clock import clock_errors
from calibrate.engine_rows import EngineRows
from calibrate.gpu_fit import fit_efficiency
from calibrate.host_fit import fit_host
from costmodels.engines.profile import EngineProfile
from costmodels.hardware.efficiency import Efficiency, FittedRange
from sim.errors import ScenarioError

_FEWEST_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFit:
    """The constants, and how well they fit."""

    profile: EngineProfile
    efficiency: Efficiency
    errors: dict[str, float]
    """Log -> median absolute relative error of a step's GPU span."""


def fit_engine(
    logs: Sequence[EngineRows], profile: EngineProfile, efficiency: Efficiency
) -> EngineFit:
    """Fit to logs of one GPU and engine version, starting from the constants given.

    The host's launches can be told from waiting for the GPU only with GPU times, and those only
    with launch times: each is fitted once more with the other. Raises `ScenarioError` for logs
    too short to fit.
    """
    steps = sum(len(rows) for rows in logs)
    if steps < _FEWEST_STEPS:
        raise ScenarioError(
            f"{steps} steps are too few to fit an engine; give logs of {_FEWEST_STEPS} or more"
        )
    # Without async scheduling every step waits for the host; the GPU is seen better with it.
    overlapped = [rows for rows in logs if rows.async_scheduling] or list(logs)
    fitted = efficiency
    for _ in range(2):
        fitted = fit_efficiency(overlapped, efficiency, profile)
        clocks = [clock_errors(rows, fitted, profile) for rows in logs]
        profile = fit_host(logs, clocks, profile)
    errors = {}
    for rows in logs:
        error = clock_errors(rows, fitted, profile).error
        if not np.isnan(error).all():  # else the host was never seen to wait for the GPU
            errors[rows.name] = float(np.nanmedian(np.abs(error)))
    fitted = replace(fitted, fitted_range=_range(logs))
    return EngineFit(profile=profile, efficiency=fitted, errors=errors)


def _range(logs: Sequence[EngineRows]) -> FittedRange:
    """The largest step and the longest mean context of any."""
    tokens, context = 0.0, 0.0
    for rows in logs:
        c = rows.columns
        tokens = max(tokens, float((c["decode_seqs"] + c["prefill_tokens"]).max()))
        for held, seqs in (
            (c["decode_context_tokens"], c["decode_seqs"]),
            (c["prefill_context_tokens"] + c["prefill_tokens"], c["prefill_seqs"]),
        ):
            context = max(context, float((held / np.maximum(seqs, 1)).max()))
    return FittedRange(int(tokens), int(context))
