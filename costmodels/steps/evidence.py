"""Where a step's prices come from: evidence labels of accounts and families, and sources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from costmodels.datafile import read_data
from costmodels.engines.profile import EngineProfile
from costmodels.formats import BF16_PEAK
from costmodels.hardware.gemm_paths import PrecisionPath, cache_path, format_path
from costmodels.hardware.kernel_curves import core_instructions_per_s
from costmodels.models.spec import ModelSpec
from costmodels.operators.kernel_times import KernelTimes
from costmodels.operators.operators import group_operators, logit_operators, token_operators
from costmodels.steps.prices import DECODE_ACCOUNT, PREFILL_ACCOUNTS
from costmodels.tables.families import family_of, prefill_family
from costmodels.work import Kind, Operator
from sim import accounts
from sim.evidence import Source, weakest

# The constants that each account's seconds depend on.
_WEIGHTS = ("gemm_memory", "gemm_compute", "gemm_half_rows", "tile_rows")
_EXPERTS = ("grouped_memory", "grouped_compute", "grouped_half_rows")
_COMPUTE = ("gemm_compute", "attention_compute")
_MEMORY = ("gemm_memory", "attention_memory", "elementwise_memory")
_FIXED = ("gemm_fixed_s", "attention_fixed_s", "elementwise_fixed_s", "sampling_fixed_s")
_LINKS = ("all_reduce_bandwidth", "all_reduce_hop_s", "all_reduce_fixed_s")
# Kernels of other formats convert weights as they read them; no constants were fitted to that.
_FITTED_FORMATS = {"bfloat16", "float16", "fp8", "fp8_block"}
_LABELLED_TOKENS = [2.0**power for power in range(14)]
_LABELLED_LOGITS = 1024


def account_evidence(kernels: KernelTimes) -> dict[str, str]:
    """Return the evidence label of each account of `sim.accounts.GPU_ACCOUNTS`.

    Fitted constants keep their own label, whatever the label of the peak: only their product with
    the peak was measured. A peak times a generic efficiency is ``datasheet``, or weaker where the
    peak itself is. Constants fitted on one rank, with 16-bit and 8-bit matrices and grouped-query
    attention, are ``extrapolated`` anywhere else. A measured table has its own label; the small
    kernels and launches beside it keep the label of the constants.
    """
    shard, gpu, efficiency = kernels.shard, kernels.gpu, kernels.efficiency
    experts = _EXPERTS if shard.model.num_moe_layers else ()

    def label(constants: tuple[str, ...], *peaks: str) -> str:
        found = weakest(efficiency.label_of(constant) for constant in constants)
        if found in ("measured", "fitted", "extrapolated"):
            return weakest((found, "extrapolated")) if is_beyond else found
        if not peaks:
            return found
        return weakest(("datasheet", *(gpu.source_of(peak)["label"] for peak in peaks)))

    fixed = (*_FIXED, "grouped_fixed_s") if experts else _FIXED
    one_rank = shard.tensor_parallel_size == 1
    precision = shard.model.precision
    formats = {precision.attention, precision.ffn, precision.experts}
    formats.add(precision.kv)
    is_beyond = (
        shard.tensor_parallel_size > 1
        or not formats <= _FITTED_FORMATS
        or bool(_unfitted_kinds(shard.model))
        or kernels.shared_prefix_attention != "none"
    )
    narrow = set(shard.model.peaks) - {BF16_PEAK}
    fp8 = ("fp8_compute", "fp8_half_rows") if narrow else ()
    labels = {
        accounts.PREFILL_COMPUTE: label((*_COMPUTE, *experts, *fp8), "bf16_flop_per_s"),
        accounts.PREFILL_MEMORY: label((*_MEMORY, *experts), "hbm_bytes_per_s"),
        accounts.DECODE_WEIGHT_READS: label((*_WEIGHTS, *experts, *fp8), "hbm_bytes_per_s"),
        accounts.DECODE_STATE_READS: label(("attention_memory",), "hbm_bytes_per_s"),
        # One rank sends nothing, so its zero is exact.
        accounts.COMMUNICATION: "measured" if one_rank else label(_LINKS),
        accounts.LAUNCH_AND_HOST: label(fixed),
        accounts.REMAINDER: label(
            ("elementwise_memory", "sampling_bytes_per_logit"), "hbm_bytes_per_s"
        ),
    }
    for account, chosen in _chosen_labels(kernels):
        labels[account] = weakest((labels[account], chosen))
    for account, path in _unpacked(kernels):
        labels[account] = weakest((labels[account], path.label))
    if kernels.backend is not None:
        for account in kernels.backend.accounts:
            labels[account] = weakest((labels[account], kernels.backend.label))
    return labels | _table_labels(kernels, labels)


def _chosen_labels(kernels: KernelTimes) -> list[tuple[str, str]]:
    """Return the labels of rates of kernels that the engine chooses, by account."""
    experts, attention = kernels.chosen.label("experts"), kernels.chosen.label("attention")
    found = []
    if experts is not None:
        found += [(accounts.PREFILL_COMPUTE, experts), (accounts.DECODE_WEIGHT_READS, experts)]
    if attention is not None:
        found.append((accounts.PREFILL_COMPUTE, attention))
    return found


def _unpacked(kernels: KernelTimes) -> list[tuple[str, PrecisionPath]]:
    """Return the precision paths that unpack narrow weights and caches, where this is priced, by
    account."""
    if core_instructions_per_s(kernels.gpu) is None:
        return []
    precision = kernels.shard.model.precision
    found = []
    for stored in dict.fromkeys((precision.attention, precision.ffn, precision.experts)):
        path = format_path(stored)
        if path is not None:
            found += [(accounts.PREFILL_COMPUTE, path), (accounts.DECODE_WEIGHT_READS, path)]
    path = cache_path(precision.kv)
    return [*found, *([(accounts.DECODE_STATE_READS, path)] if path else [])]


def _unfitted_kinds(model: ModelSpec) -> list[str]:
    """Return the kinds of layers on which no attention constant was fitted."""
    return sorted({mixer.kind for mixer, _ in model.mixers} - {"gqa"})


# The account whose label stands for a family's constants.
_FAMILY_ACCOUNT = {
    "gemm": accounts.DECODE_WEIGHT_READS,
    "grouped_gemm": accounts.DECODE_WEIGHT_READS,
    "prefill_attention": accounts.PREFILL_COMPUTE,
    "kda_chunk": accounts.PREFILL_COMPUTE,
    "gdn_chunk": accounts.PREFILL_COMPUTE,
    "decode_attention": accounts.DECODE_STATE_READS,
    "mla_decode": accounts.DECODE_STATE_READS,
    "kda_recurrent": accounts.DECODE_STATE_READS,
    "gdn_recurrent": accounts.DECODE_STATE_READS,
    "elementwise": accounts.REMAINDER,
    "embedding": accounts.REMAINDER,
    "sampling": accounts.REMAINDER,
}


def constants_label(kernels: KernelTimes, family: str) -> str:
    """Return the label of a family priced from constants: that of the account with most of its
    time."""
    account = _FAMILY_ACCOUNT.get(family, accounts.COMMUNICATION)
    return account_evidence(replace(kernels, tables=None))[account]


def _table_labels(kernels: KernelTimes, constants: dict[str, str]) -> dict[str, str]:
    """Return the labels of the accounts that measured tables serve, in whole or in part.

    ``constants`` has each account's label without tables.
    """
    if kernels.tables is None:
        return {}
    found: dict[str, set[str]] = {}
    for operator in _labeled_operators(kernels):
        label = kernels.label(operator)
        for account in _posted(operator.kind):
            found.setdefault(account, set()).add(label or constants[account])
    for mixer, _ in kernels.shard.local.prompt_mixers:
        tables = kernels.mixer_tables(mixer)
        label = kernels.prefill_label(mixer, tables) if tables else None
        for account in PREFILL_ACCOUNTS:
            found.setdefault(account, set()).add(label or constants[account])
    return {account: weakest(labels) for account, labels in found.items()}


def _posted(kind: Kind) -> tuple[str, ...]:
    """Return the accounts that the work of a kind of operators is posted to."""
    beside_prefills = kind in ("gemm", "grouped_gemm", "elementwise")
    return (*(PREFILL_ACCOUNTS if beside_prefills else ()), DECODE_ACCOUNT[kind])


def family_labels(kernels: KernelTimes) -> dict[str, str]:
    """Return the label of each family of operators that measured tables serve."""
    found: dict[str, set[str]] = {}
    mixers = tuple(mixer for mixer, _ in kernels.shard.local.mixers)
    for operator in _labeled_operators(kernels):
        label = kernels.label(operator)
        if label is not None:
            found.setdefault(family_of(operator, mixers), set()).add(label)
    for mixer in mixers:
        tables = kernels.mixer_tables(mixer)
        label = kernels.prefill_label(mixer, tables) if tables else None
        if label is not None:
            found.setdefault(prefill_family(mixer), set()).add(label)
    return {family: weakest(labels) for family, labels in found.items()}


def _labeled_operators(kernels: KernelTimes) -> list[Operator]:
    shard, sizes = kernels.shard, np.array(_LABELLED_TOKENS)
    per_logit = kernels.efficiency.sampling_bytes_per_logit
    return [
        *token_operators(shard, sizes),
        *group_operators(shard, sizes),
        *logit_operators(shard, sizes[sizes <= _LABELLED_LOGITS], per_logit),
    ]


def unpacking_sources(kernels: KernelTimes) -> list[Source]:
    """Return the instructions that unpacking takes, and the rate of this device's cores."""
    known = read_data("hardware/kernel_curves.yaml")["core_instructions_per_s"]
    found = {}
    for account, path in _unpacked(kernels):
        of_cache = account == accounts.DECODE_STATE_READS
        what = f"{path.name} instructions to unpack {'an element' if of_cache else 'a weight'}"
        value = path.kv_instructions if of_cache else path.weight_instructions
        found[what] = Source(what=what, value=value, label=path.label, source=path.source)
    rate = Source(
        what=f"{kernels.gpu.name} instructions a second beside the tensor cores",
        value=core_instructions_per_s(kernels.gpu),
        label=known["label"],
        source=known["source"],
    )
    return [*found.values(), *([rate] if found else [])]


def step_sources(kernels: KernelTimes, profile: EngineProfile) -> list[Source]:
    """Return the device numbers, tables, efficiency constants and engine constants behind a
    step's prices."""
    gpu = kernels.gpu
    numbers = ["bf16_flop_per_s", "hbm_bytes", "hbm_bytes_per_s"]
    numbers += [peak for peak in kernels.shard.model.peaks if peak not in numbers]
    if gpu.fabric_bytes_per_s is not None:
        numbers.append("fabric_bytes_per_s")
    elif gpu.host_link_bytes_per_s is not None:
        numbers.append("host_link_bytes_per_s")
    kinds = _unfitted_kinds(kernels.shard.model)
    carried = Source(
        what=f"attention of {', '.join(kinds)} layers",
        value="constants of grouped-query attention",
        label="extrapolated",
        source="work counted by kind of layer; shares of the peaks, split-KV schedule and query "
        "tiles were fitted on grouped-query attention and are unfitted for these kinds",
    )
    prefixes = Source(
        what=f"shared prefixes read once ({kernels.shared_prefix_attention})",
        value="shares of prompts' attention, launches of a prefix kernel and a merge",
        label="extrapolated",
        source="constants of separate kernels, and vLLM's rule and tiles of 128 queries "
        "(use_cascade_attention); unfitted for these kernels",
    )
    return [
        *([carried] if kinds else []),
        *([prefixes] if kernels.shared_prefix_attention != "none" else []),
        *(gpu.source_of(number) for number in numbers),
        *unpacking_sources(kernels),
        *(kernels.tables.sources() if kernels.tables else ()),
        *kernels.efficiency.sources(),
        *(kernels.backend.sources() if kernels.backend else ()),
        *kernels.chosen.sources(),
        *profile.sources(),
    ]


def beyond_measured(labels: dict[str, str], links: Iterable[Source]) -> dict[str, str]:
    """Return the labels of accounts in a layout of several ranks: ``extrapolated`` at best, as
    nothing was measured in one; exchanges depend on ``links`` too."""
    found = {account: weakest((label, "extrapolated")) for account, label in labels.items()}
    of_links = [link["label"] for link in links]
    found[accounts.COMMUNICATION] = weakest((found[accounts.COMMUNICATION], *of_links))
    return found
