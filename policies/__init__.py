"""Every choice that a serving system makes: one file per policy, listed here by name.

A name maps to ``module:attribute``; the module is imported only when the policy is used. A scenario
may also name a ``module:attribute`` of its own, in a folder that ``--plugins`` trusts.
"""

SCHEDULERS: dict[str, str] = {
    "fcfs": "policies.fcfs:fcfs",
    "priority": "policies.priority:PriorityScheduler",
    "prefill_first": "policies.prefill_first:prefill_first",
    "static": "policies.static:Static",
    "orca": "policies.orca:Orca",
    "sarathi": "policies.sarathi:Sarathi",
    "sglang": "policies.sglang:SGLang",
    "sjf": "policies.sjf:ShortestJobFirst",
    "vtc": "policies.vtc:VirtualTokenCounter",
}

ROUTERS: dict[str, str] = {
    "random": "policies.routers.random:Random",
    "round_robin": "policies.routers.round_robin:RoundRobin",
    "least_loaded": "policies.routers.least_loaded:LeastLoaded",
    "least_work": "policies.routers.least_work:LeastWork",
    "power_of_two": "policies.routers.power_of_two:PowerOfTwo",
    "session_sticky": "policies.routers.session_sticky:SessionSticky",
    "consistent_hash": "policies.routers.consistent_hash:ConsistentHash",
    "prefix_affinity": "policies.routers.prefix_affinity:PrefixAffinity",
    "adapter_affinity": "policies.routers.adapter_affinity:AdapterAffinity",
    "conductor": "policies.routers.conductor:Conductor",
    "preble": "policies.routers.preble:Preble",
}

ADMISSIONS: dict[str, str] = {
    "concurrency_cap": "policies.admission.caps:ConcurrencyCap",
    "queue_cap": "policies.admission.caps:QueueCap",
    "rate_limit": "policies.admission.rate_limit:RateLimit",
    "token_budget": "policies.admission.token_budget:TokenBudget",
    "early_rejection": "policies.admission.early_rejection:EarlyRejection",
    "decode_load": "policies.admission.decode_load:DecodeLoad",
}

AUTOSCALERS: dict[str, str] = {
    "queue_threshold": "policies.autoscalers.thresholds:QueueThreshold",
    "kv_threshold": "policies.autoscalers.thresholds:KvThreshold",
    "ttft_target": "policies.autoscalers.thresholds:TtftTarget",
}

EVICTIONS: dict[str, str] = {
    "lru": "policies.eviction.lru:LeastRecentlyUsed",
    "lfu": "policies.eviction.lfu:LeastFrequentlyUsed",
    "fifo": "policies.eviction.fifo:FirstInFirstOut",
    "ttl": "policies.eviction.ttl:TimeToLive",
}

ACCEPTANCES: dict[str, str] = {
    "chain": "policies.acceptance.chain:Chain",
    "tree": "policies.acceptance.tree:Tree",
    "replay": "policies.acceptance.replay:Replay",
}
