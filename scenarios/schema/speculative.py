"""Scenario fields of speculative decoding."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from scenarios.schema.fields import Count, Number, Policy, Section, Tokens, Whole
from sim.engine.config import MOST_DRAFTS

Rate = Annotated[Number, Field(ge=0, le=1)]
Rates = Rate | tuple[Rate | tuple[Rate, ...], ...]
"""One rate, or one per position of a chain; for a tree, one per depth, or one per rank and
depth."""
Drafts = Annotated[Whole, Field(ge=0, le=MOST_DRAFTS)]


class Speculative(Section):
    """Drafted tokens that each decode step verifies. Evidence: acceptance decides what it gains."""

    method: Literal["draft_model", "eagle", "medusa", "mtp", "ngram", "dflash"] = Field(
        description="a small model, token by token (draft_model); a layer on the target's "
        "features, a chain or a tree (eagle); further heads, a tree (medusa); a layer of the "
        "target's own kind (mtp); what followed the last tokens earlier in the sequence (ngram, "
        "prompt lookup); a few layers that draft a block in one forward (dflash)"
    )
    model: str | None = Field(
        None,
        description="of method draft_model, a name of `fleetcast list models` or a config.json",
    )
    num_speculative_tokens: Annotated[Whole, Field(ge=1, le=MOST_DRAFTS)] | None = Field(
        None, description="tokens drafted for a sequence a step; None: the method's usual number"
    )
    tree: Literal["best"] | tuple[tuple[Whole, ...], ...] | None = Field(
        None,
        description="of eagle and medusa, its nodes as paths of ranks, [[0], [1], [0, 0]], parents "
        "first, or best, the likeliest num_speculative_tokens nodes by the acceptance rates; None: "
        "a chain, of medusa best",
    )
    acceptance: Rates | dict[str, Rates] | None = Field(
        None,
        description="rate at which a draft is accepted, if all before it were; one rate, or one a "
        "place as [0.8, 0.7], or of a tree one a rank and depth as [[0.6, 0.1], [0.5, 0.1]], or "
        "any of these by request class with default for the others; None: what drafters.yaml has "
        "of the method",
    )
    acceptance_source: str | None = Field(
        None, description="where the rates were reported; None: they are assumed"
    )
    acceptance_file: str | None = Field(
        None,
        description="in place of rates, recorded accepted lengths, replayed step by step; a CSV "
        "file with a column accepted, and maybe request, counted from 0",
    )
    acceptance_policy: Policy | None = Field(
        None,
        description="in place of rates, an acceptance of your own as module:attribute; with "
        "options, a section of its name and them",
    )
    drafts_by_seqs: dict[Count, Drafts] | None = Field(
        None,
        description="tokens drafted for a sequence by how many decode on a rank, as {1: 5, 32: 3, "
        "64: 0} for less under load and nothing from 64 on; None: always as many",
    )
    draft_layers: Count | None = Field(
        None, description="of dflash, layers of the drafter; None: 5"
    )
    draft_vocab_size: Tokens | None = Field(
        None, description="of eagle, vocabulary of its own LM head (EAGLE-3); None: the target's"
    )

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if (self.model is None) == (self.method == "draft_model"):
            raise ValueError(
                "method draft_model needs a model to draft with"
                if self.model is None
                else f"method {self.method} has no model of its own: leave model out"
            )
        if self.tree is not None and self.method not in ("eagle", "medusa"):
            raise ValueError(f"method {self.method} drafts a chain; a tree is of eagle and medusa")
        given = (self.acceptance, self.acceptance_file, self.acceptance_policy)
        if sum(one is not None for one in given) > 1:
            raise ValueError(
                "acceptance, acceptance_file and acceptance_policy all say what is accepted; "
                "give one"
            )
        if self.draft_layers is not None and self.method != "dflash":
            raise ValueError("draft_layers is of method dflash")
        if self.draft_vocab_size is not None and self.method != "eagle":
            raise ValueError("draft_vocab_size is of method eagle")
        return self
