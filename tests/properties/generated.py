"""Specifications of generated workloads with shared prefixes, and functions to read the results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim.request_table import PrefixChains, RequestTable
from workloads.generator.arrivals import Arrivals
from workloads.generator.distributions import Lengths, Lognormal, counted, exponential_s, geometric
from workloads.generator.sessions import Continuations, Resets, Sessions
from workloads.generator.shared_prefixes import Documents, SystemPrompts
from workloads.generator.spec import GeneratorSpec, RequestKind

SHORT = Lengths(components=(Lognormal(mu=5.0, sigma=1.0),), min_tokens=1, max_tokens=3000)


PLAIN = RequestKind(prompt_tokens=SHORT, output_tokens=SHORT)


CHAT = Sessions(turns=geometric(4.0), think_s=exponential_s(20.0))


AGENT = replace(
    CHAT,
    resets=Resets(probability=0.2, kept={10: 0.1, 90: 0.8}, dropped=0.5),
    max_prompt_tokens=4000,
)


PASSAGES = Documents(tokens=SHORT, collection=30, zipf=1.0, per_request=counted(3), probability=0.8)


KINDS: dict[str, RequestKind] = {
    "system prompts": replace(PLAIN, system_prompts=SystemPrompts(tokens=100, count=4, zipf=1.0)),
    "part of the input": replace(
        PLAIN, system_prompts=SystemPrompts(tokens=100, part_of_input=True), documents=PASSAGES
    ),
    "passages": replace(PLAIN, system_prompts=SystemPrompts(tokens=70), documents=PASSAGES),
    "unshared images": replace(PLAIN, documents=replace(PASSAGES, collection=None)),
    "chat": replace(PLAIN, sessions=CHAT, system_prompts=SystemPrompts(tokens=50, count=2)),
    "agents": replace(PLAIN, sessions=AGENT, system_prompts=SystemPrompts(tokens=50)),
    "thinking dropped": replace(PLAIN, sessions=replace(CHAT, kept_output=0.3)),
    "sessions without history": replace(
        PLAIN, sessions=replace(CHAT, history=False), documents=PASSAGES
    ),
    "continuations": replace(
        PLAIN,
        system_prompts=SystemPrompts(tokens=50, part_of_input=True),
        continuations=Continuations(
            probability=0.6, shared={10: 0.2, 90: 1.0}, delay_s=exponential_s(5.0)
        ),
    ),
}


def spec_of(*kinds: RequestKind, **changes: Any) -> GeneratorSpec:
    values: dict[str, Any] = {"num_requests": 400} | changes
    return GeneratorSpec(arrivals=Arrivals(requests_per_s=2.0), kinds=kinds, **values)


def chain_of(chains: PrefixChains, row: int) -> list[int]:
    ids: list[int] = chains.ids[chains.offsets[row] : chains.offsets[row + 1]].tolist()
    return ids


def columns(table: RequestTable, n: int) -> list[list[int]]:
    kept = [table.arrival_ns, table.prompt_tokens, table.output_tokens]
    kept += [c for c in (table.session, table.after, table.think_ns) if c is not None]
    rows = [column[:n].tolist() for column in kept]
    return rows + ([chain_of(table.chains, i) for i in range(n)] if table.chains else [])
