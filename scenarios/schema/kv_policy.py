"""What a scenario may say of keys and values that are dropped, or not read."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from scenarios.schema.fields import Section, Tokens

_OPTIONS = {
    "streaming_llm": "sink_tokens",
    "h2o": "",
    "snapkv": "observation_tokens",
    "pyramidkv": "observation_tokens",
    "quest": "page_tokens",
}


class KvPolicy(Section):
    """Layers of full grouped-query attention keep, or read, part of their tokens."""

    kind: Literal["streaming_llm", "h2o", "snapkv", "pyramidkv", "quest"] = Field(
        description="streaming_llm: the first and the newest tokens; h2o: heavy hitters and the "
        "newest; snapkv, pyramidkv: the best of the prompt, and all that is generated; quest: all "
        "stay stored, the best pages are read"
    )
    budget_tokens: Tokens = Field(
        description="tokens kept, or read, a head; pyramidkv: the mean over layers"
    )
    sink_tokens: Tokens | None = Field(
        None, description="streaming_llm: first tokens among them; None: 4"
    )
    observation_tokens: Tokens | None = Field(
        None, description="snapkv, pyramidkv: last tokens of the prompt that choose; None: 32"
    )
    page_tokens: Tokens | None = Field(None, description="quest: tokens a page; None: 16")

    @model_validator(mode="after")
    def _options_of_the_kind(self) -> Self:
        for option in filter(None, dict.fromkeys(_OPTIONS.values())):
            if getattr(self, option) is not None and option != _OPTIONS[self.kind]:
                raise ValueError(f"{option} is no option of {self.kind}")
        if self.kind == "streaming_llm" and self.budget_tokens <= (self.sink_tokens or 4):
            raise ValueError(
                f"budget_tokens {self.budget_tokens} must be more than its "
                f"{self.sink_tokens or 4} sink_tokens"
            )
        return self
