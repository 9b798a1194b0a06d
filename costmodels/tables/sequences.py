"""Attention of a step from tables: measured on equal sequences, priced from the sums of a step.

An engine's step knows sums (sequences, contexts, query-key pairs), and its price is linear in them
so that a run of steps can be jumped over. So a table is read off at many equal batches, and the
rates with the smallest relative error stand for it: for prompts a time per pair, per token and per
cached token. Decodes are straight lines between the contexts that were measured, for each number of
sequences; if a window clips them, a fixed time and a time per token. The time of a launch, the
least fixed time of any batch, is separate: decodes and prompts of one step share one launch. A
table whose times may include the host's launches gives no fixed time: a step replays a graph
(except on a processor, where the call is the kernel).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from costmodels.formats import ModelPrecision
from costmodels.models.layers.bounded import SlidingWindow
from costmodels.models.layers.delta import Gdn, Kda
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.mla import Mla
from costmodels.models.layers.parts import Mixer
from costmodels.tables.bundle import OperatorTables
from costmodels.tables.families import Lack, decode_family, prefill_family
from costmodels.tables.ideal import attention_sums
from costmodels.tables.lookup import Labels, Lookup
from costmodels.tables.shapes import (
    DecodeAttentionTable,
    DeltaRuleTable,
    Heads,
    MlaDecodeTable,
    PrefillAttentionTable,
)
from costmodels.work import Array

DecodeSeconds = Callable[[Array, Array], tuple[Array, Labels]]
"""Maps sequences and the context of each, new token included, to the seconds of one layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFit:
    """Decodes of one layer, by number of sequences: arrays ``[max_num_seqs + 1]``."""

    seqs_s: Array
    """Seconds of all sequences together, beyond the launch."""
    token_s: Array
    """Seconds per token of their contexts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkFit:
    """Chunks of prompts in one layer, beyond the launch."""

    chunk_s: float
    """Seconds per chunk, whatever its tokens."""
    token_s: float
    pair_s: float = 0.0
    prefix_s: float = 0.0


def within(values: Array, measured: Array) -> Array:
    """Return the ``values`` inside what was measured; its ends if fewer than two are."""
    low, high = measured.min(), measured.max()
    inside = values[(values >= low) & (values <= high)]
    return inside if len(inside) > 1 else np.unique([low, high])


def decode_lines(
    seconds: DecodeSeconds, seqs: Array, contexts: Array, seq_tokens: int
) -> tuple[Array, Array]:
    """Return fixed seconds, and seconds per token of all contexts, by number of sequences: ``[n]``.

    They minimize the squared relative errors; neither is negative.
    """
    at = np.repeat(seqs, len(contexts)), np.tile(contexts, len(seqs))
    measured = seconds(*at)[0].reshape(len(seqs), len(contexts))
    if len(contexts) == 1:
        return measured[:, 0], np.zeros(len(seqs))
    y = 1 / measured
    # Contexts count the new token, which seq_tokens counts again.
    x = y * seqs[:, None] * (contexts - 1 + seq_tokens)
    yy, xy, xx = (y * y).sum(1), (x * y).sum(1), (x * x).sum(1)
    sum_y, sum_x = y.sum(1), x.sum(1)
    determinant = np.maximum(yy * xx - xy * xy, 1e-300)
    fixed = (sum_y * xx - sum_x * xy) / determinant
    rate = (sum_x * yy - sum_y * xy) / determinant
    fixed, rate = (
        np.where(rate < 0, sum_y / yy, np.maximum(fixed, 0.0)),
        np.where(fixed < 0, sum_x / xx, np.maximum(rate, 0.0)),
    )
    return fixed, rate


def fit_rates(features: list[Array], seconds: Array, launch_s: float) -> list[float]:
    """Return non-negative rates of the features with the least squared relative error."""
    from scipy.optimize import nnls  # its import takes a quarter of a second

    columns = np.stack(features, axis=1)
    scale = np.maximum(columns.mean(axis=0), 1e-9)
    weighted = columns / scale / seconds[:, None]
    rates, _ = nnls(weighted, np.maximum(1 - launch_s / seconds, 0.0))
    return [float(rate) for rate in rates / scale]


# Equal batches at which a table is read off, if they were measured.
_CONTEXTS: Array = np.exp2(np.arange(6.0, 18))
_MOST_CONTEXTS = 32
_SEQS: Array = np.exp2(np.arange(0.0, 9))
_CHUNKS: Array = np.exp2(np.arange(5.0, 15))
_PREFIXES = np.array([0.0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixerTables:
    """The tables of one kind of layer; a side without a table is None."""

    decode: Lookup | None
    decode_seconds: DecodeSeconds | None
    contexts: Array
    """Contexts at which decodes are read off; one if the context does not matter."""
    prefill: Lookup | None
    fixed_s: float
    """Least seconds that decodes of any number of sequences take."""
    launch_s: float
    """Seconds of one launch of either side; 0 if tables do not tell."""
    cap_tokens: int | None = None

    def decode_fit(self, max_num_seqs: int, seq_tokens: int) -> DecodeFit:
        """Return the decodes' fit; each reads ``seq_tokens`` beyond its context, its own token
        included."""
        assert self.decode_seconds is not None
        seqs = np.arange(1.0, max_num_seqs + 1)
        seqs_s, token_s = decode_lines(self.decode_seconds, seqs, self.contexts, seq_tokens)
        return DecodeFit(
            seqs_s=np.append(0.0, np.maximum(seqs_s - (self.launch_s or self.fixed_s), 0.0)),
            token_s=np.append(token_s[0], token_s),
        )

    def decode_seconds_at(self, max_num_seqs: int) -> Array:
        """Return decode seconds beyond the launch, by number of sequences and `contexts`: ``[n +
        1, k]``."""
        assert self.decode_seconds is not None
        seqs = np.arange(1.0, max_num_seqs + 1)
        at = np.repeat(seqs, len(self.contexts)), np.tile(self.contexts, len(seqs))
        seconds = self.decode_seconds(*at)[0].reshape(len(seqs), -1)
        beyond = np.maximum(seconds - (self.launch_s or self.fixed_s), 0.0)
        return np.concatenate([np.zeros((1, len(self.contexts))), beyond])

    def decode_labels(self) -> Labels:
        """Return the labels of the batches at which decodes are read off."""
        assert self.decode_seconds is not None
        seqs, contexts = (axis.ravel() for axis in np.meshgrid(_SEQS, self.contexts))
        return self.decode_seconds(seqs, contexts)[1]


def mixer_tables(tables: OperatorTables, mixer: Mixer, precision: ModelPrecision) -> MixerTables:
    """Return the tables that serve a kind of layer, in a model of this precision."""
    decode = seconds = prefill = None
    contexts = _CONTEXTS[:1]
    with suppress(Lack):
        decode, seconds, contexts = _decode(tables, mixer, precision)
    with suppress(Lack):
        prefill = find_prefill(tables, mixer, precision)
    fixed_s = launch_s = 0.0
    if decode is not None and seconds is not None:
        fixed_s = float(decode_lines(seconds, _SEQS, contexts, 1)[0].min())
        if _tells_fixed(decode):
            launch_s = fixed_s
            if prefill is not None and _tells_fixed(prefill):
                launch_s = min(launch_s, chunk_fit(prefill, mixer, 0.0, 0.0).chunk_s)
    cap = mixer.window if isinstance(mixer, SlidingWindow) else None
    return MixerTables(
        decode=decode,
        decode_seconds=seconds,
        contexts=contexts,
        prefill=prefill,
        fixed_s=fixed_s,
        launch_s=launch_s,
        cap_tokens=cap,
    )


def find_decode(tables: OperatorTables, mixer: Mixer, precision: ModelPrecision) -> Lookup:
    """Return the lookup that serves a mixer's decodes. Raises `Lack`."""
    return _decode(tables, mixer, precision)[0]


def find_prefill(tables: OperatorTables, mixer: Mixer, precision: ModelPrecision) -> Lookup:
    """Return the lookup that serves a mixer's prompts. Raises `Lack`."""
    family, dtype = prefill_family(mixer), precision.dtype
    if not tables.lookups.get(family):
        raise Lack(f"no {family} table")
    if isinstance(mixer, Kda | Gdn):
        return tables.choose(family, activations=dtype, kv=precision.state, same=_state_dims(mixer))
    if isinstance(mixer, Mla):
        raise Lack("keys and values of latent attention have heads of their own width in prompts")
    heads = _heads(mixer)
    same = {"head_dim": heads.head_dim, "window": heads.window}
    return tables.choose(family, activations=dtype, kv=precision.kv, same=same)


def chunk_fit(lookup: Lookup, mixer: Mixer, tile_tokens: float, launch_s: float) -> ChunkFit:
    """Return the fit of chunks, for prices with ``tile_tokens`` more pairs per token attended to.

    The time of those pairs is subtracted from that of a token, which may fall below 0; the sum does
    not.
    """
    columns = lookup.table.columns
    if isinstance(lookup, DeltaRuleTable) and isinstance(mixer, Kda | Gdn):
        tokens = within(_CHUNKS, columns["tokens"])
        dims = _state_dims(mixer)
        seconds, _ = lookup.seconds(np.ones_like(tokens), tokens, heads=mixer.kv_heads, **dims)
        chunk_s, token_s = fit_rates([np.ones_like(tokens), tokens], seconds, launch_s)
        return ChunkFit(chunk_s=chunk_s if _tells_fixed(lookup) else 0.0, token_s=token_s)
    assert isinstance(lookup, PrefillAttentionTable)
    heads = _heads(mixer)
    axes = np.meshgrid(
        within(_CHUNKS, columns["new_tokens"]), within(_PREFIXES, columns["prefix_tokens"])
    )
    new, prefix = (axis.ravel() for axis in axes)
    one = np.ones_like(new)
    seconds, _ = lookup.seconds(one, new, prefix, heads)
    shape = {"seqs": one, "new_tokens": new, "prefix_tokens": prefix}
    shape["window"] = np.full_like(one, heads.window)
    pairs, _, _ = attention_sums("prefill_attention", shape)
    told = 1.0 if _tells_fixed(lookup) else 0.0
    if heads.window:  # tokens beyond the window have no price of their own
        pairs = pairs + tile_tokens * np.minimum(prefix, heads.window)
        chunk_s, token_s, pair_s = fit_rates([one, new, pairs], seconds, launch_s)
        return ChunkFit(
            chunk_s=told * chunk_s, token_s=token_s - tile_tokens * pair_s, pair_s=pair_s
        )
    chunk_s, token_s, pair_s, prefix_s = fit_rates([one, new, pairs, prefix], seconds, launch_s)
    return ChunkFit(
        chunk_s=told * chunk_s,
        token_s=token_s - tile_tokens * pair_s,
        pair_s=pair_s,
        prefix_s=prefix_s - tile_tokens * pair_s,
    )


def _tells_fixed(lookup: Lookup) -> bool:
    return lookup.table.meta.launches in ("graph", "host")


def prefill_labels(lookup: Lookup, mixer: Mixer) -> Labels:
    """Return the labels of the chunks at which prompts are read off."""
    tokens = _CHUNKS
    if isinstance(lookup, DeltaRuleTable) and isinstance(mixer, Kda | Gdn):
        dims = _state_dims(mixer)
        return lookup.seconds(np.ones_like(tokens), tokens, heads=mixer.kv_heads, **dims)[1]
    assert isinstance(lookup, PrefillAttentionTable)
    one = np.ones_like(tokens)
    return lookup.seconds(one, tokens, np.zeros_like(tokens), _heads(mixer))[1]


def _decode(
    tables: OperatorTables, mixer: Mixer, precision: ModelPrecision
) -> tuple[Lookup, DecodeSeconds, Array]:
    family, dtype = decode_family(mixer), precision.dtype
    if not tables.lookups.get(family):
        raise Lack(f"no {family} table")
    if isinstance(mixer, Kda | Gdn):
        dims = _state_dims(mixer)
        lookup = tables.choose(family, activations=dtype, kv=precision.state, same=dims)
        assert isinstance(lookup, DeltaRuleTable)
        recurrent, heads = lookup, mixer.kv_heads

        def of_states(seqs: Array, contexts: Array) -> tuple[Array, Labels]:
            return recurrent.seconds(seqs, np.ones_like(seqs), heads=heads, **dims)

        return lookup, of_states, _CONTEXTS[:1]
    if isinstance(mixer, Mla):
        latent = {"kv_lora_rank": mixer.kv_lora, "rope_dim": mixer.rope}
        lookup = tables.choose(family, activations=dtype, kv=precision.kv, same=latent)
        assert isinstance(lookup, MlaDecodeTable)
        absorbed, count = lookup, mixer.heads

        def of_latents(seqs: Array, contexts: Array) -> tuple[Array, Labels]:
            return absorbed.seconds(seqs, contexts, heads=count, **latent)

        return lookup, of_latents, _measured_contexts(lookup, latent)
    of_mixer = _heads(mixer)
    same = {"head_dim": of_mixer.head_dim, "window": of_mixer.window}
    lookup = tables.choose(family, activations=dtype, kv=precision.kv, same=same)
    assert isinstance(lookup, DecodeAttentionTable)
    grouped = lookup

    def of_heads(seqs: Array, contexts: Array) -> tuple[Array, Labels]:
        return grouped.seconds(seqs, contexts, of_mixer)

    contexts = _measured_contexts(lookup, same)
    if of_mixer.window and (contexts <= of_mixer.window).sum() > 1:
        contexts = contexts[contexts <= of_mixer.window]
    return lookup, of_heads, contexts


def _measured_contexts(lookup: Lookup, same: Mapping[str, float]) -> Array:
    """Return the contexts of curves with these ``same`` columns, thinned out evenly if there are
    too many."""
    columns = lookup.table.columns
    chosen = np.all([columns[name] == value for name, value in same.items()], axis=0)
    contexts = np.unique(columns["context_tokens"][chosen])
    if len(contexts) <= _MOST_CONTEXTS:
        return contexts
    places = np.linspace(0, len(contexts) - 1, _MOST_CONTEXTS).round().astype(np.int64)
    spread: Array = contexts[places]
    return spread


def _heads(mixer: Mixer) -> Heads:
    """Return the mixer's heads. Raises `Lack` unless it is attention over all tokens or a window
    of them."""
    window = 0
    gqa: Mixer = mixer
    if isinstance(mixer, SlidingWindow) and not mixer.sink_tokens:
        gqa, window = mixer.gqa, mixer.window
    if not isinstance(gqa, Gqa):
        raise Lack(f"no table is of {mixer.kind} layers")
    return Heads(q_heads=gqa.heads, kv_heads=gqa.kv_heads, head_dim=gqa.head_dim, window=window)


def _state_dims(mixer: Kda | Gdn) -> dict[str, int]:
    if isinstance(mixer, Kda):
        return {"head_k_dim": mixer.head_dim, "head_v_dim": mixer.head_dim}
    return {"head_k_dim": mixer.k_dim, "head_v_dim": mixer.v_dim}
