"""Notes beside a forecast: what was decided for the user, and what is assumed."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.hardware.gpus import GIB
from costmodels.layouts.layout import Layout
from costmodels.memory.paging import is_recurrent
from scenarios.build.cache import Cache
from scenarios.build.engine import pool_tokens, why_uncached
from scenarios.build.pools import PoolBuild
from scenarios.build.replica import Replica
from scenarios.schema import Scenario
from sim.beams import beams
from sim.engine.config import EngineConfig
from sim.fleet.handover import TransferConfig
from sim.kv.layout import PLAIN


def _api_server_notes(replica: Replica) -> list[str]:
    costs = replica.api_server
    if costs is None:
        return []
    return [
        f"figures are a client's: a process of the API server takes {1e3 * costs.request_s:.2g} ms "
        f"a request, {1e6 * costs.prompt_token_s:.2g} us a prompt token and "
        f"{1e6 * costs.part_s:.2g} us for each part of an answer ({costs.evidence.label})"
    ]


def build_notes(
    scenario: Scenario, parts: Sequence[PoolBuild], transfer: TransferConfig | None
) -> tuple[str, ...]:
    """Return the notes of all pools, those of later ones under their names, and of the fleet."""
    notes = [*parts[0].notes]
    for part in parts[1:]:
        notes += [f"{part.pool.name}: {note}" for note in part.notes if note not in notes]
    if transfer is not None:
        notes.append(_transfer_note(transfer))
    if scenario.workload.beam_width > 1:
        notes.append(_beam_note(scenario))
    if scenario.faults is not None or scenario.autoscaler is not None:
        notes += [_startup_note(scenario, part) for part in parts]
    return tuple(notes)


def pool_notes(replica: Replica, engine: EngineConfig, cache: Cache) -> tuple[str, ...]:
    """Return the notes of one pool."""
    policy, speculation = replica.scenario.kv.policy, replica.speculation
    return (
        *_length_notes(replica, engine),
        *_block_notes(replica),
        *_prefix_notes(replica),
        *_swap_notes(replica, engine),
        *cache.notes,
        *replica.notes,
        *(
            [f"what {policy.kind} does to answers is not modelled: only bytes and time"]
            if policy
            else []
        ),
        *_layout_notes(replica.layout),
        *_offload_notes(replica),
        *replica.kernels.operators.notes,
        *replica.kernel_notes,
        *(() if speculation is None else speculation.notes),
        *_graph_notes(replica),
        *_api_server_notes(replica),
        *(note for one in replica.added for note in one.notes),
    )


def _length_notes(replica: Replica, engine: EngineConfig) -> list[str]:
    positions, room = replica.model.max_position_embeddings, pool_tokens(replica)
    if replica.scenario.engine.max_model_len is not None or positions <= room:
        return []
    return [
        f"max_model_len is {engine.max_model_len:,}, all that the KV pool holds, not the model's "
        f"{positions:,}"
    ]


def _block_notes(replica: Replica) -> list[str]:
    """Return notes on blocks of another size than asked for."""
    notes: list[str] = []
    size, asked = replica.memory.blocks.block_size, replica.scenario.kv.block_size
    parts = replica.layout.context_ranks
    if parts > 1:
        notes.append(
            f"a KV block holds {size:,} tokens, {size // parts:,} on each of the {parts} ranks "
            "that split contexts"
        )
    if size != parts * asked:
        notes.append(
            f"a KV block holds {size:,} tokens, not {asked}: a page must fit a layer's recurrent "
            "state, or whole compressed entries"
        )
    return notes


def _prefix_notes(replica: Replica) -> list[str]:
    """Return notes on what differs from a prefix cache of full attention."""
    blocks, notes = replica.memory.blocks, []
    if not replica.scenario.kv.enable_prefix_caching or blocks.layout == PLAIN:
        return []
    if len(blocks.layout.prompts) > 1:
        notes.append(
            f"a KV block is of one budget's layers alone, {blocks.block_bytes:,} bytes: each layer "
            "gives back pages of its own"
        )
    reason = why_uncached(replica)
    if reason is not None:
        notes.append(f"prefix caching is off: {reason}")
    elif blocks.layout.fixed_pages and not is_recurrent(replica.model):
        notes.append("a prefix hit is assumed to find what compressors had gathered at its end")
    return notes


def _swap_notes(replica: Replica, engine: EngineConfig) -> list[str]:
    if engine.preemption_mode != "swap":
        return []
    ranks = replica.layout.data_parallel_size
    rate = replica.memory.blocks.block_bytes / engine.swap_ns_per_block / ranks
    return [f"preempted requests move to the host and back at {rate:.3g} GB/s a GPU"]


def _layout_notes(layout: Layout) -> list[str]:
    notes: list[str] = []
    if layout.data_parallel_size > 1:
        notes.append(
            f"{layout.data_parallel_size} data-parallel ranks are one batch dealt out by whole "
            "sequences, and step together with the one that has most; their contexts are taken as "
            "equal, and a prefix cached by one is taken as cached by all"
        )
    if layout.pipeline_parallel_size > 1:
        notes.append(
            f"{layout.pipeline_parallel_size} pipeline stages work on as many micro-batches: a "
            "step is a round of all of them, as often the slowest stage as there are stages; "
            "layers of all kinds are taken as spread evenly over stages"
        )
    if layout.prefill_context_parallel_size > 1:
        how = "by an all-gather before attention"
        if layout.prefill_context_parallel_mode == "ring":
            how = "passed round a ring while attention computes"
        notes.append(
            f"the tokens of a prompt's chunk are split over {layout.prefill_context_parallel_size} "
            f"ranks, keys and values brought to all {how}; all of them compute every decode, and "
            "hold all weights, experts too"
        )
    if layout.decode_context_parallel_size > 1:
        notes.append(
            f"{layout.decode_context_parallel_size} ranks of a tensor-parallel group split each "
            "sequence's keys and values; queries are gathered and outputs merged in every layer"
        )
    link = layout.stage_link
    if link is not None:
        away = f", and {link.client_hops} to and from the client" if link.client_hops else ""
        notes.append(
            f"stages are joined by {link.name}: {link.latency_s * 1e3:g} ms one way and "
            f"{link.bytes_per_s / 1e6:,.4g} MB/s, {layout.pipeline_parallel_size - 1} hops between "
            f"them{away} in a step; it does not fail, and carries nothing else"
        )
    load = layout.expert_load
    if layout.enable_expert_parallel and not load.loads:
        popular = f"popular by a Zipf exponent of {load.skew:g}" if load.skew else "equally popular"
        chance = "" if load.skew else ": ranks differ by chance alone"
        notes.append(
            f"experts are taken as {popular}{chance} (engine.expert_skew, engine.expert_loads)"
        )
    return notes


def _offload_notes(replica: Replica) -> list[str]:
    """Return notes on what is off the device and what is assumed about it."""
    notes: list[str] = []
    scenario, away = replica.scenario, replica.memory.away
    host, disk, kv = away.host_weight_bytes, away.disk_weight_bytes, replica.memory.blocks
    if scenario.engine.cpu_offload_gb and host < int(scenario.engine.cpu_offload_gb * GIB):
        notes.append(
            f"engine.cpu_offload_gb {scenario.engine.cpu_offload_gb:g} is more than the layers' "
            f"{host / GIB:.2f} GiB a GPU: all of them are in host memory"
        )
    for size, where in ((host, "in host memory"), (disk, "on disk")):
        if size:
            notes.append(f"{size / GIB:.2f} GiB of weights a GPU are {where}, streamed every step")
    if kv.host_bytes:
        notes.append(
            f"up to {kv.host_bytes / GIB:.2f} GiB of keys and values a GPU are in host "
            "memory, streamed every step"
        )
    if host and scenario.hardware.host_memory_gb is None:
        notes.append("the host is taken to have that memory (hardware.host_memory_gb checks it)")
    return notes


def _graph_notes(replica: Replica) -> list[str]:
    """Note from which batch size steps that verify drafts are too large for a CUDA graph."""
    cost = replica.cost
    for least, drafts in cost.drafts_by_seqs:
        beyond = cost.largest_graph(drafts) // (1 + drafts) + 1
        later = [other for other, _ in cost.drafts_by_seqs if other > least]
        if drafts and max(beyond, least) < min([*later, replica.max_num_seqs + 1]):
            return [
                f"from {max(beyond, least)} decoding sequences a rank on, steps that verify "
                f"{drafts} drafts each are beyond the largest CUDA graph and launched kernel by "
                "kernel: raise engine.max_cudagraph_capture_size, or draft less from there on",
            ]
    return []


def _transfer_note(transfer: TransferConfig) -> str:
    how = "pushed layer by layer" if transfer.mode == "push" else "fetched after the prefill"
    return (
        f"KV is {how}, {transfer.bytes_per_token:,} B a token, at up to "
        f"{transfer.prefill_nic_bytes_per_s / 1e9:.3g} GB/s out of a prefill and "
        f"{transfer.decode_nic_bytes_per_s / 1e9:.3g} GB/s into a decode engine; the first token "
        "comes from the prefill engine"
    )


def _beam_note(scenario: Scenario) -> str:
    workload = scenario.workload
    found = beams(workload.beam_width, 1 << 40, workload.beam_tail_tokens)
    source = "beams descend from each other uniformly"
    if workload.beam_tail_tokens is not None:
        source = "workload.beam_tail_tokens"
    return (
        f"beam search: {workload.beam_width - 1} further beams of a long answer hold "
        f"{found.own_tokens:,.1f} tokens of their own, in blocks of their own ({source}, assumed); "
        "the copies of partly filled blocks cost no time here"
    )


def _startup_note(scenario: Scenario, part: PoolBuild) -> str:
    startup, pool = scenario.startup, part.pool
    return (
        f"{pool.name + ': ' if pool.name else ''}an engine serves {pool.start_ns / 1e9:.3g} s "
        f"after its start ({startup.process_s:g} s, then its weights), a new machine "
        f"{startup.provision_s:g} s later"
    )
