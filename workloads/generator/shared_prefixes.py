"""Shared prefixes of prompts: system prompts and documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.arrays import Float64, Int64
from sim.errors import ScenarioError
from workloads.generator.distributions import (
    MOST_DOCUMENTS,
    ONE,
    Counts,
    Lengths,
    Observed,
    mean_count,
    sample_counts,
    sample_tokens,
    stream,
)
from workloads.readers.rows import MAX_TOKENS

MOST_CONTENTS = 10_000_000

NONE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPrompts:
    """Texts, one of which every prompt begins with. Raises ScenarioError for values out of
    range."""

    tokens: int
    count: int = 1
    zipf: float = 0.0
    """Zipf exponent: the k-th most popular is chosen in proportion to ``k ** -zipf``; 0: all
    alike."""
    per_client: bool = False
    """Whether each client of the arrivals has one of its own, instead of ``count`` for all."""
    part_of_input: bool = False
    """Whether these are the first of the prompt's drawn tokens (all but one of a shorter prompt),
    or on top of them."""
    then_unique_tokens: int = 0
    """Tokens behind the text that differ in every request, such as the time of day: no shared
    prefix goes beyond them."""

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MAX_TOKENS or not 0 <= self.then_unique_tokens <= MAX_TOKENS:
            raise ScenarioError(f"system prompts of {self.tokens} tokens; expected at least 1")
        if not 1 <= self.count <= MOST_CONTENTS or not 0 <= self.zipf <= 20:
            raise ScenarioError(
                f"{self.count} system prompts, zipf {self.zipf}; expected 1 to {MOST_CONTENTS} "
                "and a zipf exponent from 0 to 20"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """Texts put before a request's own tokens, in the order they are drawn.

    Raises ScenarioError for values out of range.
    """

    tokens: Lengths | Observed
    """Tokens of each document, drawn once for the whole collection."""
    collection: int | None = None
    """Number of documents to choose from; None: every document is new and never shared."""
    zipf: float = 0.0
    """Zipf exponent: the k-th most popular is chosen in proportion to ``k ** -zipf``; 0: all
    alike."""
    per_request: Counts | Lengths = ONE
    probability: float = 1.0
    """Probability that a request has any documents."""

    def __post_init__(self) -> None:
        if self.collection is not None and not 1 <= self.collection <= MOST_CONTENTS:
            raise ScenarioError(
                f"a collection of {self.collection} documents; expected 1 to {MOST_CONTENTS}"
            )
        if not 0 <= self.zipf <= 20 or not 0 <= self.probability <= 1:
            raise ScenarioError(
                f"documents with zipf {self.zipf} and probability {self.probability}; expected "
                "0 to 20 and 0 to 1"
            )
        if mean_count(self.per_request) > MOST_DOCUMENTS:
            raise ScenarioError(f"over {MOST_DOCUMENTS} documents a request on average")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefixes:
    """Shared levels of ``n`` prompts, one content after another."""

    content: Int64
    """The content ``[n, levels]`` of each level; NONE if there is none."""
    tokens: Int64
    """Tokens ``[n, levels]`` of each level."""
    own_tokens: Int64
    """Tokens ``[n]`` of unique text and unshared documents, which follow the levels."""

    @property
    def total_tokens(self) -> Int64:
        """Tokens ``[n]`` of all levels together."""
        total: Int64 = self.tokens.sum(axis=1)
        return total

    def taken(self, index: Int64) -> Prefixes:
        """Return the prefixes of the rows that ``index`` names."""
        return Prefixes(
            content=self.content[index],
            tokens=self.tokens[index],
            own_tokens=self.own_tokens[index],
        )

    def clipped(self, most: Int64) -> Prefixes:
        """Return the prefixes with at most ``most`` ``[n]`` tokens in levels; empty levels are
        removed."""
        before = np.cumsum(self.tokens, axis=1) - self.tokens
        left = np.clip(most[:, None] - before, 0, None)
        tokens = np.minimum(self.tokens, left)
        content = np.where(tokens > 0, self.content, NONE)
        return Prefixes(content=content, tokens=tokens, own_tokens=self.own_tokens)


def draw_prefixes(
    system: SystemPrompts | None,
    documents: Documents | None,
    n: int,
    client: Int64 | None,
    seed: int,
    kind: str,
) -> Prefixes:
    """Draw the prefixes of ``n`` sessions or requests of one kind, from random streams of its own.

    Raises ScenarioError if prompts per client are wanted and there are no clients.
    """
    content, tokens = [], []
    own_tokens = np.zeros(n, np.int64)
    if system is not None:
        if not system.per_client:
            chosen = _zipf(system.count, system.zipf, stream(seed, f"system {kind}").random(n))
        elif client is not None:
            chosen = client
        else:
            raise ScenarioError("system prompts per client need arrivals with clients")
        content.append(chosen[:, None])
        tokens.append(np.full((n, 1), system.tokens))
        own_tokens += system.then_unique_tokens
    if documents is not None:
        documents_content, documents_tokens = _documents(documents, n, seed, kind)
        if documents.collection is None or (system is not None and system.then_unique_tokens):
            own_tokens += documents_tokens.sum(axis=1)
        else:
            content.append(documents_content)
            tokens.append(documents_tokens)
    empty = np.empty((n, 0), np.int64)
    return Prefixes(
        content=np.concatenate([empty, *content], axis=1),
        tokens=np.concatenate([empty, *tokens], axis=1),
        own_tokens=own_tokens,
    )


def _documents(documents: Documents, n: int, seed: int, kind: str) -> tuple[Int64, Int64]:
    """Draw the content and tokens of each request's documents, ``[n, most]``."""
    number = sample_counts(documents.per_request, stream(seed, f"documents {kind}").random(n))
    number = np.minimum(number, MOST_DOCUMENTS)
    number[stream(seed, f"documents or not {kind}").random(n) >= documents.probability] = 0
    total = int(number.sum())
    which = stream(seed, f"which documents {kind}").random(total)
    if documents.collection is None:
        chosen, length = np.arange(total), sample_tokens(documents.tokens, which)
    else:
        uniforms = stream(seed, f"document lengths {kind}").random(documents.collection)
        chosen = _zipf(documents.collection, documents.zipf, which)
        length = sample_tokens(documents.tokens, uniforms)[chosen]
    most = int(number.max(initial=0))
    is_there = np.arange(most) < number[:, None]
    content = np.full((n, most), NONE)
    tokens = np.zeros((n, most), np.int64)
    content[is_there], tokens[is_there] = chosen, length
    return content, tokens


def _zipf(count: int, exponent: float, uniforms: Float64) -> Int64:
    """Return ``[n]`` ranks from 0 at ``uniforms`` ``[n]``."""
    below = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    ranks: Int64 = np.searchsorted(below / below[-1], uniforms, side="right")
    return np.minimum(ranks, count - 1)
