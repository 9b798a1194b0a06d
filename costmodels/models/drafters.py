"""Drafters: the models they run beside the target, derived from its architecture.

A drafter is a few small models and the passes it makes in a step. A pass covers a number of tokens
per sequence and is repeated a number of times. `costmodels.drafting.speculative_cost` prices them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from costmodels.datafile import read_data
from costmodels.formats import precision_of
from costmodels.models.layers.dense import Dense, Matrix
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.spec import LayerGroup, ModelSpec
from sim.errors import ScenarioError
from sim.evidence import Evidence

Method = Literal["draft_model", "eagle", "medusa", "mtp", "ngram", "dflash"]
METHODS: tuple[str, ...] = get_args(Method)


class MethodFacts(NamedTuple):
    """Facts on file about a method; acceptance rates are those of a draft at each place."""

    title: str
    drafts: int
    acceptance: tuple[tuple[float, ...], ...]
    """Acceptance rates by depth, then by rank; a chain has one rate per depth."""
    evidence: Evidence
    keeps_target: str
    """Whether sampled tokens follow the target's distribution: yes or no, as reported."""
    keeps_source: str
    async_scheduling: bool
    """Whether vLLM plans ahead of its drafts."""
    heads: int
    layers: int


def method_facts(method: str) -> MethodFacts:
    """Return a row of ``drafters.yaml``."""
    row = read_data("models/drafters.yaml")["methods"][method]
    rates = tuple(tuple(r) if isinstance(r, list) else (r,) for r in row["acceptance"])
    return MethodFacts(
        title=row["title"],
        drafts=row["drafts"],
        acceptance=rates,
        evidence=Evidence(label=row["label"], source=row["source"]),
        keeps_target=row["keeps_target"],
        keeps_source=row["keeps_source"],
        async_scheduling=row["async_scheduling"],
        heads=row.get("heads", 1),
        layers=row.get("layers", 1),
    )


_FEATURE_LAYERS = 5
"""Number of the target's layers whose features a block drafter reads (DFlash)."""


Path = tuple[int, ...]


class Pass(NamedTuple):
    """One forward pass of a drafter in a step."""

    model: ModelSpec
    tokens_per_seq: int
    logits_per_seq: int
    times: int = 1
    """Number of such passes, one after the other."""
    reads_prompts: bool = False
    """Whether prompts pass it too, for their keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A drafting method on one target."""

    method: str
    draft: ModelSpec | None
    """The drafter's layers; None if it has none (n-grams)."""
    inject: ModelSpec | None
    """The model that gives its layers keys and values of the target's tokens; None if a pass
    does it."""
    tree: tuple[Path, ...] | None
    """Static tree, parents first; None: a chain."""
    own_head: bool
    """Whether its LM head differs from the target's; ``own_tables``: its token table too."""
    own_tables: bool = False
    heads: int = 1
    """Copies of ``draft`` beside each other (Medusa)."""

    @property
    def has_state(self) -> bool:
        """Whether it keeps keys and values of its own."""
        return self.draft is not None and bool(self.draft.mixers)

    @property
    def weight_bytes_by_spec(self) -> list[tuple[ModelSpec, int]]:
        """(spec, copies) of what it adds to the device, without the target's tables."""
        specs = [] if self.draft is None else [(self.draft, self.heads)]
        return specs if self.inject is None else [*specs, (self.inject, 1)]

    def passes(self, drafts: int) -> tuple[Pass, ...]:
        """Return the passes it runs in a step in which each sequence drafts ``drafts`` tokens."""
        if self.draft is None or not drafts:
            return ()
        if self.method == "medusa":
            return (Pass(self.draft, 1, 1, times=self._depth(drafts)),)
        if self.method == "dflash":
            assert self.inject is not None
            return (
                Pass(self.inject, 1 + drafts, 0, reads_prompts=True),
                Pass(self.draft, 1 + drafts, drafts),
            )
        if self.tree is None:
            first = Pass(self.draft, 1 + drafts, 1, reads_prompts=True)
            further = Pass(self.draft, 1, 1, times=drafts - 1)
            return (first, further) if drafts > 1 else (first,)
        return self._tree_passes(self.draft, drafts)

    def prompt_passes(self) -> tuple[Pass, ...]:
        """Return the prompts' passes in a step without drafts, so that later passes find keys
        and values."""
        model = self.inject or self.draft
        if model is None or not self.has_state:
            return ()
        return (Pass(model, 0, 0, reads_prompts=True),)

    def _tree_passes(self, draft: ModelSpec, drafts: int) -> tuple[Pass, ...]:
        """Return the passes by level: the nodes of a level that have children are drafted from at
        once.

        The first pass also takes the tokens that the target accepted, up to the depth of the tree.
        """
        assert self.tree is not None
        nodes = self.tree[:drafts]
        parents = {path[:-1] for path in nodes}
        widths = [
            sum(1 for path in parents if len(path) == depth)
            for depth in range(1, self._depth(drafts))
        ]
        first = Pass(draft, 1 + self._depth(drafts), 1, reads_prompts=True)
        return (first, *(Pass(draft, width, width) for width in widths))

    def _depth(self, drafts: int) -> int:
        return drafts if self.tree is None else max(map(len, self.tree[:drafts]))


def make_drafter(
    method: str,
    target: ModelSpec,
    *,
    draft: ModelSpec | None = None,
    tree: Sequence[Path] | None = None,
    layers: int | None = None,
    draft_vocab_size: int | None = None,
) -> Drafter:
    """Return the drafter of a method for a target.

    ``draft`` is the model of `draft_model`; ``layers`` those of dflash; ``draft_vocab_size`` a
    smaller vocabulary of a separate LM head (EAGLE-3). Raises `ScenarioError` for options that do
    not go together.
    """
    paths = None if tree is None else tuple(tuple(path) for path in tree)
    if paths is not None and method not in ("eagle", "medusa"):
        raise ScenarioError(
            f"speculative method {method} drafts a chain; a tree is of eagle, medusa"
        )
    if (draft is None) == (method == "draft_model"):
        need = "needs a model to draft with" if draft is None else "has no model of its own"
        raise ScenarioError(f"speculative method {method} {need}")
    if method == "ngram":
        return _drafter(method, None, tree=None)
    if method == "draft_model":
        assert draft is not None
        if draft.clips:
            raise ScenarioError(
                f"{draft.name} as a draft model is not modelled: its windows are not followed"
            )
        return _drafter(method, draft, own_head=True, own_tables=True)
    if method == "medusa":
        head = _spec(target, "medusa", (LayerGroup(count=1, ffn=_square(target), norms=0),))
        deep = max(map(len, paths)) if paths else 1
        return _drafter(method, head, tree=paths, own_head=True, heads=deep)
    if method == "mtp":
        return _drafter(method, _mtp(target))
    mixer, ffn = _dense_layer(target, method)
    if method == "eagle":
        joined = LayerGroup(count=1, ffn=_join(target, 2), norms=1, all_reduces=0)
        layer = LayerGroup(count=1, mixer=mixer, ffn=ffn)
        spec = _spec(target, "eagle", (joined, layer), vocab_size=draft_vocab_size)
        return _drafter(method, spec, tree=paths, own_head=draft_vocab_size is not None)
    count = layers or method_facts("dflash").layers
    block = _spec(target, "dflash", (LayerGroup(count=count, mixer=mixer, ffn=ffn),))
    kv = Matrix(inner=target.hidden_size, outer=2 * mixer.kv_size)
    inject = (
        LayerGroup(count=1, ffn=_join(target, _FEATURE_LAYERS), norms=1, all_reduces=0),
        LayerGroup(count=count, ffn=kv, norms=0, all_reduces=0),
    )
    return _drafter(method, block, inject=_spec(target, "dflash context", inject))


def _drafter(
    method: str,
    draft: ModelSpec | None,
    *,
    tree: tuple[Path, ...] | None = None,
    inject: ModelSpec | None = None,
    own_head: bool = False,
    own_tables: bool = False,
    heads: int = 1,
) -> Drafter:
    return Drafter(
        method=method,
        draft=draft,
        inject=inject,
        tree=tree,
        own_head=own_head,
        own_tables=own_tables,
        heads=heads,
    )


def with_drafter(target: ModelSpec, drafter: Drafter | None) -> ModelSpec:
    """Return the target, extended by the drafter's layers whose keys and values share its
    blocks."""
    if drafter is None or drafter.draft is None or not drafter.has_state:
        return target
    kept = tuple(
        replace(group, ffn=None) for group in drafter.draft.layers if group.mixer is not None
    )
    return replace(target, layers=(*target.layers, *kept))


def _spec(
    target: ModelSpec, kind: str, layers: tuple[LayerGroup, ...], *, vocab_size: int | None = None
) -> ModelSpec:
    """Return a drafter's model in the target's 16-bit type, with its cache's format."""
    precision = replace(precision_of(target.precision.dtype), kv=target.precision.kv)
    return replace(
        target,
        name=f"{target.name} {kind} drafter",
        layers=layers,
        vocab_size=vocab_size or target.vocab_size,
        tie_word_embeddings=False,
        learned_position_rows=0,
        extra_params=0,
        residual=None,
        mtp=(),
        precision=precision,
    )


def _mtp(target: ModelSpec) -> ModelSpec:
    """Return one MTP module: a layer like the last one (or as in the checkpoint), and its
    joining matrix."""
    layer = target.mtp[0] if target.mtp else target.layers[-1]
    joined = LayerGroup(count=1, ffn=_join(target, 2), norms=2, all_reduces=0)
    return replace(
        target,
        name=f"{target.name} MTP module",
        layers=(joined, replace(layer, count=1)),
        tie_word_embeddings=False,
        learned_position_rows=0,
        extra_params=0,
        residual=None,
        mtp=(),
    )


def _dense_layer(target: ModelSpec, method: str) -> tuple[Gqa, Ffn]:
    """Return a layer like the target's, with full attention and a dense FFN of the active width."""
    mixers: list[Mixer] = [mixer for mixer, _ in target.mixers]
    found = [getattr(mixer, "gqa", mixer) for mixer in mixers]
    gqa = next((mixer for mixer in reversed(found) if isinstance(mixer, Gqa)), None)
    if gqa is None:
        heads = max(1, target.hidden_size // 128)
        gqa = Gqa(heads=heads, kv_heads=max(1, heads // 8), head_dim=128)
    ffn, _ = target.ffns[-1]
    if isinstance(ffn, Moe):
        ffn = Dense(width=ffn.top_k * ffn.width + ffn.shared_width)
    if not isinstance(ffn, Dense):
        raise ScenarioError(f"speculative method {method} is not modelled beside {target.name}")
    return replace(gqa, sinks=False), ffn


def _square(target: ModelSpec) -> Matrix:
    return Matrix(inner=target.hidden_size, outer=target.hidden_size)


def _join(target: ModelSpec, features: int) -> Matrix:
    return Matrix(inner=features * target.hidden_size, outer=target.hidden_size)
