"""Routing of random weights: a stated number of experts that tokens choose among.

An engine with random weights may send all tokens to a few experts, so that its decode steps read
far fewer weights than a trained model's. The number is fitted to a recording's own decode steps,
for that recording alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize_scalar

from costmodels.fields import POSITIVE, Fields
from costmodels.models.layers.moe import Moe
from costmodels.models.spec import ModelSpec
from scenarios.build.replica import Replica
from scenarios.validation.folder import Recording
from sim.shape import decode_shape

_COLLAPSED = 0.7
"""Share of the experts below which routing is taken to have collapsed, rather than the price to be
wrong."""


def with_routing(model: ModelSpec, experts: float) -> ModelSpec:
    """Return ``model`` with tokens that choose among that number of experts."""
    layers = tuple(
        replace(group, ffn=replace(group.ffn, chosen_from=experts))
        if isinstance(group.ffn, Moe)
        else group
        for group in model.layers
    )
    return replace(model, layers=layers)


def routing_spread(recording: Recording, replica: Replica) -> float | None:
    """Return the number of experts that fits the recorded decode steps best.

    None if the weights are not random, the model has no experts, there are no decode points, or
    they look like routing over most experts. Raises `ScenarioError` for a damaged info file.
    """
    if replica.model.experts is None or not recording.info.get("engine_args"):
        return None
    fields = Fields(recording.info, str(recording.info_path))
    arguments = fields.child("engine_args")
    if arguments.first("load_format") != "dummy":
        return None
    points = [row for row in fields.children("e1") if row.first("kind") == "decode"]
    if not points:
        return None
    clips = replica.model.clips
    shapes = [decode_shape(row.count("B"), row.count("L"), clips) for row in points]
    measured_s = [row.need(POSITIVE, "ms_median", what="a number above 0") / 1e3 for row in points]
    most, least = replica.model.experts.num_experts, replica.model.experts.top_k

    def misfit(experts: float) -> float:
        model = with_routing(replica.model, experts)
        cost = replace(replica, model=model).plain_cost(equal_contexts=True)
        predicted_s = [cost.price(shape).gpu_ns / 1e9 for shape in shapes]
        return float(np.abs(np.log(np.divide(predicted_s, measured_s))).sum())

    found = minimize_scalar(misfit, bounds=(least, most), method="bounded", options={"xatol": 0.5})
    return float(found.x) if found.x < _COLLAPSED * most else None
