"""Kernels that an engine's host launches for a model's layers, counted by kind of layer.

A step that replays one graph costs the host the same whatever the model. With prompts, attention
runs between the graphs of the other operators and its kernels are launched one by one; beyond the
largest graph all kernels are. `launches.yaml` has the counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from costmodels.datafile import read_data
from costmodels.models.layers.gqa import softmax_attention
from costmodels.models.layers.moe import Moe
from costmodels.models.spec import LayerGroup, ModelSpec

_FILE = "engines/launches.yaml"


class Launches(NamedTuple):
    """What the host does to launch a step's layers, as counts."""

    compiled: int = 0
    """Kernels launched one by one from compiled code."""
    called: int = 0
    """Kernels launched one by one from the engine's Python around attention."""
    graphs: int = 0
    """Replays of graphs between attention."""
    calls: int = 0
    """Calls of the engine's Python around experts."""

    def plus(self, other: Launches, times: int = 1) -> Launches:
        """Return these and ``times`` the others."""
        return Launches(*(a + times * b for a, b in zip(self, other, strict=True)))


def eager_launches(model: ModelSpec, experts: str = "", ranks: int = 1) -> Launches:
    """Count a step with prompts beyond the largest graph.

    ``experts`` is the kernel of routed experts, a name of `expert_kernels.yaml`; ``ranks`` are
    those that share each layer and sum its outputs.
    """
    total = Launches()
    for group in model.layers:
        layer = _compiled(model, group, experts, ranks)
        total = total.plus(layer._replace(called=_called(group, "called")), group.count)
    return total


def piecewise_launches(model: ModelSpec) -> Launches:
    """Count a step with prompts that fits a graph: one replay a layer, and its attention."""
    total = Launches()
    for group in model.layers:
        total = total.plus(Launches(graphs=1, called=_called(group, "short")), group.count)
    return total


def decodes_beside(model: ModelSpec) -> Launches:
    """Count what decodes add to an eager step with prompts."""
    return _more(model, "beside")


def contexts_gathered(model: ModelSpec) -> Launches:
    """Count what prompts with cached context add to an eager step, if it fits one workspace."""
    return _more(model, "context")


def _compiled(model: ModelSpec, group: LayerGroup, experts: str, ranks: int) -> Launches:
    data = read_data(_FILE)
    layer = Launches(compiled=group.norms + (group.all_reduces if ranks > 1 else 0))
    if group.mixer is not None:
        layer = layer.plus(_of(data["mixers"][group.mixer.kind]))
        if not model.precision.matrix(model.precision.attention)[1].peak.startswith("bf16"):
            layer = layer.plus(_of(data["converted"]))
    if group.ffn is not None:
        chosen = data["experts"].get(experts) if isinstance(group.ffn, Moe) else None
        layer = layer.plus(_of(chosen or data["ffns"][group.ffn.kind]))
        if isinstance(group.ffn, Moe) and group.ffn.shared_width:
            layer = layer.plus(_of(data["shared_experts"]))
    return layer


def _of(row: Mapping[str, Any]) -> Launches:
    return Launches(compiled=row.get("compiled", 0), calls=row.get("calls", 0))


def _called(group: LayerGroup, name: str) -> int:
    if group.mixer is None:
        return 0
    data, softmax = read_data(_FILE), softmax_attention(group.mixer)
    row = data["mixers"][group.mixer.kind]
    of_sinks = data["sinks"]["called"] if softmax is not None and softmax.sinks else 0
    return int(row.get(name, row["called"])) + of_sinks


def _more(model: ModelSpec, name: str) -> Launches:
    rows = read_data(_FILE)["mixers"]
    counts = (n * rows[mixer.kind].get(name, 0) for mixer, n in model.mixers)
    return Launches(called=sum(counts))
