"""The time accounts: every nanosecond of a request's life is posted to exactly one of them."""

API_SERVER = "api_server"
ADMISSION_QUEUE = "admission_queue"
SCHEDULING_WAIT = "scheduling_wait"
CACHE_LOAD = "cache_load"
KV_TRANSFER = "kv_transfer"
PREFILL_COMPUTE = "prefill_compute"
PREFILL_MEMORY = "prefill_memory"
DECODE_WEIGHT_READS = "decode_weight_reads"
DECODE_STATE_READS = "decode_state_reads"
COMMUNICATION = "communication"
ADAPTERS = "adapters"
LAUNCH_AND_HOST = "launch_and_host"
OTHERS_PREFILL = "others_prefill"
SPECULATION_DRAFT = "speculation_draft"
SPECULATION_WASTE = "speculation_waste"
PREEMPTION_RECOMPUTE = "preemption_recompute"
PREEMPTION_SWAP = "preemption_swap"
FAILURE_REWORK = "failure_rework"
REMAINDER = "remainder"

# Accounts that a cost model splits a step's GPU time into. The time that the decodes alone would
# take goes to the decode accounts; what prefills add goes to the prefill accounts, by what binds
# them. LoRA adapters have an account of their own, which also has the time to load them; so have
# drafting and the part of verification that was spent on rejected drafts.
GPU_ACCOUNTS = (
    PREFILL_COMPUTE,
    PREFILL_MEMORY,
    DECODE_WEIGHT_READS,
    DECODE_STATE_READS,
    COMMUNICATION,
    ADAPTERS,
    LAUNCH_AND_HOST,
    SPECULATION_DRAFT,
    SPECULATION_WASTE,
    REMAINDER,
)

# Every account of a request's end-to-end time, in the order in which a request meets them.
TIME_ACCOUNTS = (
    API_SERVER,
    ADMISSION_QUEUE,
    SCHEDULING_WAIT,
    CACHE_LOAD,
    PREFILL_COMPUTE,
    PREFILL_MEMORY,
    DECODE_WEIGHT_READS,
    DECODE_STATE_READS,
    COMMUNICATION,
    ADAPTERS,
    LAUNCH_AND_HOST,
    SPECULATION_DRAFT,
    SPECULATION_WASTE,
    OTHERS_PREFILL,
    KV_TRANSFER,
    PREEMPTION_RECOMPUTE,
    PREEMPTION_SWAP,
    FAILURE_REWORK,
    REMAINDER,
)
