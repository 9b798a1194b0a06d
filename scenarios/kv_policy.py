"""The model that a scenario's KV policy makes of one, and what a forecast of it leaves open."""

from __future__ import annotations

from costmodels.models.kv_policies import h2o, pyramid_kv, quest, snapkv, streaming_llm
from costmodels.models.spec import ModelSpec
from scenarios.schema.kv_policy import KvPolicy


def with_policy(model: ModelSpec, policy: KvPolicy | None) -> ModelSpec:
    """``model`` under a policy; None: as it is. Raises `ScenarioError` if it has no such layer."""
    if policy is None:
        return model
    budget_tokens = policy.budget_tokens
    match policy.kind:
        case "streaming_llm":
            sink_tokens = policy.sink_tokens or 4
            return streaming_llm(model, budget_tokens - sink_tokens, sink_tokens)
        case "h2o":
            return h2o(model, budget_tokens)
        case "snapkv":
            return snapkv(model, budget_tokens, policy.observation_tokens or 32)
        case "pyramidkv":
            return pyramid_kv(model, budget_tokens, policy.observation_tokens or 32)
        case "quest":
            return quest(model, budget_tokens, policy.page_tokens or 16)


def policy_notes(policy: KvPolicy | None) -> tuple[str, ...]:
    """What to say beside a forecast."""
    if policy is None:
        return ()
    return (f"what {policy.kind} does to answers is not modelled: only bytes and time",)
