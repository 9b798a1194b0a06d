"""Scenario fields of a generated workload: arrivals, lengths, and what prompts share."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scenarios.schema.arrivals import Clients, OnOff, Zipf
from scenarios.schema.distributions import (
    Counts,
    Durations,
    Lengths,
    Percentiles,
    Share,
    check_range,
)
from scenarios.schema.fields import Count, Number, Section, Tokens, Whole

Cv = Annotated[Number, Field(ge=0.01, le=100)]


class SystemPrompts(Section):
    """A text that all prompts, or those of a group, begin with."""

    tokens: Tokens = Field(description="length of each")
    count: Annotated[Whole, Field(ge=1, le=10_000_000)] = Field(
        1, description="how many different ones; each request, or session, has one of them"
    )
    zipf: Zipf = Field(0.0, description="popularity of the k-th: k ** -zipf; 0: all alike")
    per_client: bool = Field(False, description="one for each of the arrivals' clients instead")
    part_of_input: bool = Field(
        False, description="the first of input_tokens, rather than on top of them"
    )
    then_unique_tokens: Annotated[Whole, Field(ge=0, le=100_000_000)] = Field(
        0,
        description="tokens behind it that no other request has, such as the time of day: nothing "
        "after them is a shared prefix",
    )


class Documents(Section):
    """Passages, documents or images put before a request's own tokens, behind the system prompt."""

    tokens: Lengths = Field(description="length of each")
    collection: Annotated[Whole, Field(ge=1, le=10_000_000)] | None = Field(
        None, description="how many there are to choose from; None: each is new, and never shared"
    )
    zipf: Zipf = Field(0.0, description="popularity of the k-th: k ** -zipf; 0: all alike")
    per_request: Counts = Field(
        Counts(fixed=1),
        description="how many, in the order drawn; sessions with history choose once",
    )
    probability: Share = Field(1.0, description="that a request has any")


class Images(Section):
    """Images put before a request's own tokens, which the model's tower turns into tokens."""

    width: Annotated[Whole, Field(ge=1, le=100_000)] = Field(description="pixels")
    height: Annotated[Whole, Field(ge=1, le=100_000)] = Field(description="pixels")
    per_request: Annotated[Whole, Field(ge=1, le=1000)] = Field(1, description="how many")


class Resets(Section):
    """Turns that keep only the first part of the context: compaction, edits, another model."""

    probability: Share = Field(description="of each turn but the first")
    kept: Percentiles = Field(
        Percentiles(fixed=0.0),
        description="share of the context that stays; the shared prefix always does",
    )
    dropped: Share = Field(
        1.0,
        description="probability that the rest is gone; else it is rewritten, as long as before",
    )

    @model_validator(mode="after")
    def _shares(self) -> Self:
        check_range(self.kept, "kept", 0, 1)
        return self


class Sessions(Section):
    """Conversations or agent runs: each turn is sent a think time after the answer before it."""

    turns: Counts = Field(description="requests of a session")
    think_s: Durations = Field(Durations(fixed=0.0), description="from an answer to the next turn")
    new_tokens: Lengths | None = Field(
        None, description="of each turn but the first; None: as input_tokens"
    )
    history: bool = Field(
        True, description="a turn's prompt begins with all before it; else each stands by itself"
    )
    kept_output: Share = Field(
        1.0,
        description="share of an answer in the next prompt; below 1 (thinking is dropped) it is "
        "computed anew there",
    )
    resets: Resets | None = Field(None, description="of contexts, which else only grow")
    max_input_tokens: Tokens | None = Field(
        None, description="turns with longer prompts are reset; None: no limit"
    )

    @model_validator(mode="after")
    def _fits_history(self) -> Self:
        if self.new_tokens is not None and self.new_tokens.fixed == 0:
            raise ValueError("new_tokens must be at least 1")
        if not self.history and (self.resets is not None or self.kept_output < 1):
            raise ValueError("resets and kept_output are for sessions with history")
        return self


class Continuations(Section):
    """Requests that go on from an earlier one, without waiting for its answer (open loop)."""

    probability: Share = Field(description="that a request does")
    shared: Percentiles = Field(description="share of its prompt in common with the earlier one")
    delay_s: Durations = Field(description="how long ago that one arrived")

    @model_validator(mode="after")
    def _shares(self) -> Self:
        check_range(self.shared, "shared", 0, 1)
        return self


class Generator(Section):
    """Settings of a synthetic workload."""

    arrivals: Literal["poisson", "gamma", "weibull", "constant", "all-at-once"] = Field(
        "poisson", description="gaps between requests, or between starts of sessions"
    )
    cv: Cv | None = Field(
        None, description="of the gaps, for gamma and weibull: 1 is Poisson, above is bursty"
    )
    shape: Annotated[Number, Field(ge=0.15, le=100)] | None = Field(
        None, description="shape parameter of weibull gaps, instead of cv"
    )
    on_off: OnOff | None = Field(None, description="bursts and silences")
    clients: Clients | None = Field(None, description="clients of unequal size and burstiness")
    input_tokens: Lengths = Field(
        description="of a prompt, or of a session's first; shared prefixes come on top. fixed, or "
        "lognormal and gamma (with min, max), or from_file"
    )
    output_tokens: Lengths = Field(description="of an answer")
    paired: bool = Field(
        True,
        description="where both lengths are from one file: input and output of a row together; "
        "else each by itself",
    )
    system_prompts: SystemPrompts | None = Field(None, description="what prompts begin with")
    documents: Documents | None = Field(None, description="what stands behind the system prompt")
    images: Images | None = Field(None, description="what stands there instead, as tokens")
    sessions: Sessions | None = Field(
        None, description="requests that follow one another; under way when the run starts"
    )
    continuations: Continuations | None = Field(
        None, description="reuse at given arrival times and lengths; not together with sessions"
    )
    block_tokens: Annotated[Whole, Field(ge=1, le=1_048_576)] = Field(
        16,
        description="tokens a prefix block id stands for; a larger one (64, 512) saves time and "
        "memory with long contexts, and must divide kv.block_size or be a multiple of it",
    )

    @model_validator(mode="after")
    def _has_prompts(self) -> Self:
        if self.input_tokens.fixed == 0:
            raise ValueError("input_tokens must be at least 1; only output_tokens may be 0")
        return self

    @model_validator(mode="after")
    def _fits_arrivals(self) -> Self:
        if self.shape is not None and (self.arrivals != "weibull" or self.cv is not None):
            raise ValueError("shape is of weibull arrivals, instead of cv")
        if self.clients is not None and (self.cv is not None or self.shape is not None):
            raise ValueError("clients have a cv of their own: give it there")
        if self.arrivals == "all-at-once" and (self.on_off or self.clients):
            raise ValueError("all-at-once arrivals have no clients and no bursts")
        prompts = self.system_prompts
        if prompts is not None and prompts.per_client and self.clients is None:
            raise ValueError("system_prompts.per_client needs clients")
        return self

    @model_validator(mode="after")
    def _fits_structure(self) -> Self:
        if self.continuations is not None and self.sessions is not None:
            raise ValueError("give sessions (closed loop) or continuations (open loop), not both")
        if (
            self.continuations is not None
            and self.documents is not None
            and self.documents.collection is not None
        ):
            raise ValueError("continuations and documents of a collection do not go together")
        return self


MostUsers = Annotated[Count, Field(le=10_000_000)]
