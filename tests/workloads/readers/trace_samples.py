"""A small file of every trace format, as the producing tools write it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def lines(rows: Iterable[dict[str, Any]]) -> str:
    """Write rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{s:02d}.6805900,{300 + s},{s}\n" for s in range(40)
)

BURSTGPT = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82,4,GPT-4,906,446,1352,Conversation log
19440112.0,,1,ChatGPT,36,29,65,API log
19440120.5,1722ac82,43,GPT-4,1500,0,1500,Conversation log
19440130.0,1722ac82,5,GPT-4,1400,20,1420,Conversation log
19440131.0,d5983bf9,2,ChatGPT,300,7,307,Conversation log
19440132.0,1722ac82,1,GPT-4,1500,30,1530,Conversation log
"""

MOONCAKE = lines(
    {"timestamp": 3000 * (i // 3), "input_length": 700, "output_length": i, "hash_ids": [0, i + 1]}
    for i in range(40)
)

MOONCAKE_SESSIONS = lines(
    [
        {"session_id": "a", "timestamp": 500, "input_length": 600, "output_length": 3}
        | {"hash_ids": [1, 2]},
        {"session_id": "b", "timestamp": 700, "input_length": 512, "output_length": 4}
        | {"hash_ids": [9], "text_input": "hello"},
        {"session_id": "a", "delay": 250, "input_length": 1100, "output_length": 5}
        | {"hash_ids": [1, 2, 3]},
        {"session_id": "b", "delay_ms": 40.5, "input_length": 513, "output_length": 6}
        | {"hash_ids": [9, 10]},
    ]
)

MOONCAKE_AGENTIC = lines(
    [
        {"request_id": "r0", "session_id": "s", "timestamp": 0, "input_length": 512}
        | {"output_length": 1, "hash_ids": [1]},
        {"request_id": "r1", "session_id": "s", "wait_for": ["r0"], "delay": 10}
        | {"tool_wait_ms": 5, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]},
        {"request_id": "r2", "session_id": "s", "wait_for": ["r0"], "delay": 20}
        | {"input_length": 601, "output_length": 1, "hash_ids": [1, 3]},
        {"request_id": "r3", "session_id": "s", "wait_for": ["r1", "r2"], "delay": 30}
        | {"input_length": 602, "output_length": 1, "hash_ids": [1, 4]},
    ]
)

MOONCAKE_DELTA = lines(
    [
        {"session_id": "s", "timestamp": 0, "input_length": 530, "output_length": 2}
        | {"hash_ids": [1, 2]},
        {"session_id": "s", "delay": 5, "input_length": 20, "output_length": 1, "hash_ids": [3]},
        {"session_id": "t", "timestamp": 9, "input_length": 540, "output_length": 1}
        | {"hash_ids": [1, 7]},
    ]
)


def _bailian(chat: int, parent: int, t: float, tokens: int, ids: list[int]) -> dict[str, Any]:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": t,
        "input_length": tokens,
        "output_length": chat,
        "type": "text",
        "turn": 1 if parent < 0 else 2,
        "hash_ids": ids,
    }


BAILIAN = lines(
    [
        _bailian(11, -1, 61.0, 40, [1, 2, 3]),
        _bailian(12, -1, 61.5, 16, [1]),
        _bailian(13, 11, 75.25, 70, [1, 2, 3, 4, 5]),
        _bailian(14, 12, 76.0, 17, [1, 9]),
        _bailian(15, 11, 80.0, 41, [1, 2, 8]),
    ]
)

AGENTIC = """\
session,idx,t_s,agent,model,input_tokens,output_tokens,parent,lcp_blocks,blocks,api_s,think_s,stream,trigger,stop
1,0,0.0,0,0,640,10,-1,0,10,2.0,0.0,0,U,t
1,1,5.0,0,0,700,11,0,9,10,4.0,3.0,0,T,t
1,2,7.5,1,4,130,12,-1,0,2,1.0,0.0,0,U,t
1,3,9.5,1,4,200,13,2,2,3,1.0,1.0,0,T,e
1,4,20.0,0,0,900,14,1,10,14,3.0,11.0,0,T,e
4,0,0.0,0,1,64,15,-1,0,1,1.0,0.0,0,U,e
4,1,3.25,0,1,200,16,0,1,3,1.0,2.25,0,U,e
"""

RAGPULSE_CHUNKS = "chunk_id,kind,tokens\n1,sys,40\n2,sys,20\n5,psg,100\n6,psg,30\n9,user,7\n"


def _ragpulse(t: float, session: int, tokens: int, psg: list[int]) -> dict[str, Any]:
    row = {"t_s": t, "session": session, "input_tokens": tokens, "output_tokens": 5}
    return row | {"sys": [1, 2], "psg": psg, "hist": [], "web": [], "user": [9]}


RAGPULSE = lines(
    [
        _ragpulse(0, 0, 170, [5]),
        _ragpulse(27, 1, 200, [5, 6]),
        _ragpulse(64, 0, 100, [6]),
        _ragpulse(64, 2, 170, [5]),
    ]
)

SERVEGEN_RATES = """\
model,client,bin,rate,cv,pat,shape,scale_s
big,0,0,0.5,2.0,G,0.25,8.0
big,0,1,0.25,1.0,W,1.0,4.0
big,3,1,1.0,1.0,G,1.0,1.0
small,0,0,2.0,1.0,G,1.0,0.5
"""
SERVEGEN_LENGTHS = """\
model,client,field,lo,p
big,0,input_tokens,64,0.25
big,0,input_tokens,362,0.75
big,0,output_tokens,7,1.0
small,0,text_tokens,27,1.0
small,0,image_count,0,0.5
small,0,image_count,2,0.5
small,0,image_tokens,512,1.0
small,0,output_tokens,5,1.0
"""

LENGTHS = "input_tokens,output_tokens\n" + "".join(f"{700 + i},{i}\n" for i in range(40))

SGLANG = lines(
    {
        "prompt": list(range(20 + i)),
        "prompt_len": 20 + i,
        "output_len": 4,
        "timestamp": 1000 * i + 0.5,
    }
    for i in range(20)
)

AIPERF = lines(
    [
        {"timestamp": 10, "input_length": 5, "output_length": 6, "session_id": "a"},
        {"timestamp": 20, "input_length": 600, "output_length": 4, "hash_ids": [1, 2]},
        {"delay": 30, "input_length": 9, "output_length": 6, "session_id": "a"},
    ]
)

AIPERF_TURNS = lines(
    {
        "session_id": f"s{i}",
        "turns": [
            {"input_length": 10, "output_length": 5},
            {"input_length": 30, "output_length": 6, "delay": 1500},
        ],
    }
    for i in range(5)
)

LLMSERVINGSIM = lines(
    [
        {"input_toks": 33, "output_toks": 5, "arrival_time_ns": 1_000_000_007}
        | {"input_tok_ids": list(range(33))},
        {"session_id": "x", "arrival_time_ns": 2_000_000_000}
        | {
            "sub_requests": [
                {"input_toks": 100, "output_toks": 5, "tool_duration_ns": 700},
                {"input_toks": 120, "output_toks": 6, "tool_duration_ns": 0},
            ]
        },
    ]
)

APEX = lines(
    {"StartTimeOffset": 10**9 * i + 3, "ContextTokens": 100 + i, "GeneratedTokens": 7}
    for i in range(20)
)

TRIE = lines(
    {
        "num_turns": 2,
        "input_prompt_length": 30 + i,
        "assistant_response_length": [16, 20],
        "tool_call_output_length": [8, 12],
        "tool_call_latency": [1.5, 0.25],
        "final_assistant_response_length": 64,
    }
    for i in range(5)
)

_BLIS_HEADER = (
    "request_id,client_id,tenant_id,slo_class,session_id,round_index,prefix_group,prefix_length,"
    "streaming,input_tokens,output_tokens,deadline_us,arrival_time_us,send_time_us,"
    "first_chunk_time_us,last_chunk_time_us,num_chunks,status,finish_reason\n"
)
BLIS = _BLIS_HEADER + (
    "0,c1,t1,standard,s1,0,g1,64,true,10,5,0,0,0,5000,9000,5,ok,stop\n"
    "1,c1,t1,standard,s1,1,g1,64,true,30,6,0,20000,20000,25000,29000,5,ok,stop\n"
    "2,c2,t1,batch,,0,,0,true,40,7,0,30000,30000,0,0,0,error,\n"
    "3,c2,t1,batch,,0,g2,48,true,50,8,0,40000,40000,45000,49000,8,ok,stop\n"
)

COLUMNS = "ts,route,usage.prompt_tokens,usage.completion_tokens,cost\n" + "".join(
    f"2026-11-29T09:00:{s:02d}.250Z,chat,{300 + s},{s},0.1\n" for s in range(40)
)

SAMPLES: dict[str, dict[str, str]] = {
    "azure": {"trace": AZURE},
    "burstgpt": {"trace": BURSTGPT},
    "mooncake": {"trace": MOONCAKE},
    "mooncake-delta": {"trace": MOONCAKE_DELTA},
    "bailian": {"trace": BAILIAN},
    "agentic": {"trace": AGENTIC},
    "ragpulse": {"requests.jsonl": RAGPULSE, "chunks.csv": RAGPULSE_CHUNKS},
    "servegen": {"rates.csv": SERVEGEN_RATES, "length_hist.csv": SERVEGEN_LENGTHS},
    "lengths": {"trace": LENGTHS},
    "sglang": {"trace": SGLANG},
    "aiperf": {"trace": AIPERF},
    "llmservingsim": {"trace": LLMSERVINGSIM},
    "apex": {"trace": APEX},
    "trie": {"trace": TRIE},
    "blis": {"trace": BLIS},
    "columns": {"trace": COLUMNS},
}
"""By format the files of a trace, the trace itself first."""


def write_sample(folder: Path, name: str) -> Path:
    """Write the files of a format's sample; returns the trace's path."""
    for file, text in SAMPLES[name].items():
        (folder / file).write_text(text)
    return folder / next(iter(SAMPLES[name]))
