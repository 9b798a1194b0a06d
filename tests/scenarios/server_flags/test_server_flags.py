"""Command lines of vLLM and SGLang as scenarios: each flag, and real commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from typer.testing import CliRunner, Result

from scenarios.commands import app
from scenarios.files.load import parse_scenario
from scenarios.files.schema_yaml import section_of
from scenarios.schema import Scenario
from scenarios.server_flags.argv import read_given
from scenarios.server_flags.outcome import Outcome, settle
from scenarios.server_flags.reading import Reading, read_command
from scenarios.server_flags.table import TABLES, Flag, load_table
from scenarios.server_flags.words import read_words
from sim.errors import ScenarioError

MODEL = "meta-llama/Llama-3.1-8B"
SERVE = {"vllm": f"vllm serve {MODEL}", "sglang": f"sglang serve --model-path {MODEL}"}
LOAD = {"--preset": "azure-conv", "--rate": 5.0}


def read(engine: str, *command: str, **options: Any) -> Reading:
    return read_command(engine, command, flags=options.pop("flags", LOAD), **options)


def values_of(engine: str, *command: str, **options: Any) -> dict[str, Any]:
    """The scenario's values by dotted name; it is checked to be one."""
    values = yaml.safe_load(read(engine, *command, **options).text)
    parse_scenario(values)
    return flat(values)


def flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in values.items():
        is_section = isinstance(value, dict) and key != "speculative"
        fields |= flat(value, f"{path}{key}.") if is_section else {path + key: value}
    return fields


def refused(engine: str, *command: str, **options: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(engine, *command, **options)
    return str(caught.value)


def outcomes_of(engine: str, arguments: list[str]) -> list[Outcome]:
    table = load_table(engine)
    return settle(read_given(arguments, table), {}, table, [])


def arguments_of(flag: Flag, spelling: str, text: str) -> list[str]:
    if flag.takes in ("switch", "toggle"):
        return [spelling if text == "on" else f"--no-{spelling.lstrip('-')}"]
    return [spelling, *(text.split() if flag.takes == "values" else [text])]


# The tables

MAPPED = [
    pytest.param(engine, spelling, text, expected, id=f"{engine} {spelling} {text}")
    for engine in TABLES
    for spelling, flag in load_table(engine).flags.items()
    for text, expected in flag.example.items()
]


@pytest.mark.parametrize(("engine", "spelling", "text", "expected"), MAPPED)
def test_every_mapped_flag_sets_its_field(
    engine: str, spelling: str, text: str, expected: Any
) -> None:
    flag = load_table(engine).flags[spelling]
    values = values_of(engine, *SERVE[engine].split(), *arguments_of(flag, spelling, text))
    is_section = isinstance(expected, dict) and flag.field != "engine.speculative"
    fields = flat(expected, f"{flag.field}.") if is_section else {flag.field: expected}
    assert fields.items() <= values.items()
    assert set(values) - set(values_of(engine, SERVE[engine])) <= {*fields, *flag.also}


@pytest.mark.parametrize("engine", TABLES)
def test_every_mapped_flag_changes_its_field(engine: str) -> None:
    """One of its examples, at least, is not what the scenario has without the flag."""
    without = flat(parse_scenario(yaml.safe_load(read(engine, SERVE[engine]).text)).model_dump())
    mapped = [f for f in load_table(engine).flags.values() if f.fate == "mapped" and f.field]
    assert mapped
    for flag in mapped:
        changed = [value != without.get(flag.field) for value in flag.example.values()]
        assert any(changed) or flag.field == "model", flag.name


@pytest.mark.parametrize("engine", TABLES)
def test_every_flag_says_what_becomes_of_it(engine: str) -> None:
    for name, flag in load_table(engine).flags.items():
        if flag.fate != "mapped":
            assert flag.because, name
            continue
        if not flag.field:  # its reader names the fields
            assert flag.reads, name
            assert flag.note, name
            continue
        assert flag.example, name
        assert flag.field in fields_of_schema(), name
        assert set(flag.also) <= fields_of_schema(), name
        assert flag.reads or flag.choices, name


def fields_of_schema(section: type[BaseModel] = Scenario, deepest: int = 4) -> set[str]:
    names = set()
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        names.add(name)
        if inner is not None and deepest:
            names |= {f"{name}.{key}" for key in fields_of_schema(inner, deepest - 1)}
    return names


@pytest.mark.parametrize("engine", TABLES)
def test_flags_are_read_without_taking_the_next_one_for_a_value(engine: str) -> None:
    """Each flag with what it takes, all on one line: all are found again."""
    table = load_table(engine)
    flags = list({id(flag): flag for flag in table.flags.values()}.values())
    text = {"value": "1", "values": "1", "json": "{}"}
    arguments = [w for f in flags for w in (f.name, text.get(f.takes, "")) if w]
    assert [one.flag for one in read_given(arguments, table)] == flags


def test_counts_of_the_tables_are_those_of_the_engines() -> None:
    """The tables have 293 spellings of vLLM 0.25.1, and 546 of SGLang 0.5.23.

    Counted in the sources that the tables name; --model-type is of `sglang serve` alone.
    """
    counts = {
        engine: sum(not flag.older for flag in load_table(engine).flags.values())
        for engine in TABLES
    }
    assert counts == {"vllm": 293, "sglang": 547}


# Commands that people wrote, in the words that matter, with where they stand

PUBLIC = [
    # https://qwen.readthedocs.io/en/stable/deployment/vllm.html
    ("vllm", "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4", {}, {"tp": 4}),
    # https://docs.vllm.ai/projects/recipes/en/latest/Qwen/Qwen3-Coder-480B-A35B.html
    (
        "vllm",
        """vllm serve Qwen/Qwen3-Coder-480B-A35B-Instruct \\
          --max-model-len 32000 \\
          --enable-expert-parallel \\
          --tensor-parallel-size 8 \\
          --enable-auto-tool-choice \\
          --tool-call-parser qwen3_coder""",
        {},
        {"tp": 8, "engine.max_model_len": 32000, "engine.enable_expert_parallel": True},
    ),
    # the same page
    (
        "vllm",
        "vllm serve Qwen/Qwen3-Coder-480B-A35B-Instruct --enable-expert-parallel "
        "--data-parallel-size 8",
        {},
        {"engine.data_parallel_size": 8, "engine.enable_expert_parallel": True},
    ),
    # https://docs.vllm.ai/en/stable/serving/expert_parallel_deployment
    (
        "vllm",
        """vllm serve deepseek-ai/DeepSeek-V3-0324 --tensor-parallel-size 1 \\
          --data-parallel-size 16 --enable-expert-parallel --enable-eplb \\
          --eplb-config '{"window_size":1000,"num_redundant_experts":32}' \\
          --all2all-backend deepep_low_latency""",
        {"--model": "deepseek-v3"},
        {
            "engine.data_parallel_size": 16,
            "engine.num_redundant_experts": 32,
            "engine.all2all_backend": "deepep_low_latency",
        },
    ),
    # https://docs.vllm.ai/en/stable/deployment/docker/
    (
        "vllm",
        """docker run --runtime nvidia --gpus all \\
            -v ~/.cache/huggingface:/root/.cache/huggingface \\
            --env "HUGGING_FACE_HUB_TOKEN=$HF_TOKEN" \\
            -p 8000:8000 \\
            --ipc=host \\
            vllm/vllm-openai:latest \\
            --model Qwen/Qwen3-0.6B""",
        {},
        {"model": "Qwen/Qwen3-0.6B"},
    ),
    # https://docs.redhat.com/en/documentation/red_hat_ai_inference_server/3.1/html/
    # vllm_server_arguments/key-server-arguments-server-arguments
    (
        "vllm",
        """$ podman run --rm -it --device nvidia.com/gpu=all --security-opt=label=disable \\
        --shm-size=4GB -p 8000:8000 --userns=keep-id:uid=1001 --env "HF_HUB_OFFLINE=0" \\
        --env=VLLM_NO_USAGE_STATS=1 -v ./rhaiis-cache:/opt/app-root/src/.cache \\
        registry.redhat.io/rhaiis/vllm-cuda-rhel9:3.1.0 \\
        --model RedHatAI/Llama-3.2-1B-Instruct-FP8 \\
        --tensor-parallel-size 2 --gpu-memory-utilization 0.8""",
        {"--model": MODEL},
        {"tp": 2, "kv.gpu_memory_utilization": 0.8},
    ),
    # https://github.com/seungrokj/bench_vllm, 0_server_prof.sh
    (
        "vllm",
        """export LLAMA_DIR=/models/Llama-3.1-70B-Instruct

        HSA_NO_SCRATCH_RECLAIM=1 VLLM_USE_V1=1 VLLM_WORKER_MULTIPROC_METHOD=spawn \\
        vllm serve $LLAMA_DIR \\
             --tensor-parallel-size 8 \\
             --gpu-memory-utilization 0.9 \\
             --disable-log-requests \\
             --swap-space 16 \\
             --no-enable-prefix-caching \\
             --max-num-batched-tokens 8192 \\
             --max-num-seqs 1024 """,
        {"--model": "meta-llama/Llama-3.1-70B"},
        {
            "tp": 8,
            "kv.enable_prefix_caching": False,
            "engine.max_num_batched_tokens": 8192,
            "engine.max_num_seqs": 1024,
        },
    ),
    # https://github.com/li2haipeng/vllm, run_server.sh
    (
        "vllm",
        """export VLLM_USE_DEEPGEMM=1
        # export VLLM_ATTENTION_BACKEND='FLASH_ATTN'
        python -m vllm.entrypoints.openai.api_server \\
            --model /home/ubuntu/models/Llama-3.3-70B-Instruct \\
            --tensor-parallel-size 8 --max-model-len 8192 --max-num-seqs 8 \\
            --port 8088 --trust-remote-code""",
        {"--model": "llama-3.3-70b"},
        {"tp": 8, "engine.max_num_seqs": 8, "engine.max_model_len": 8192},
    ),
    # https://github.com/vllm-project/vllm/pull/4600
    (
        "vllm",
        "python -m vllm.entrypoints.openai.api_server --model meta-llama/Meta-Llama-3-8B-Instruct "
        "--disable-log-requests -tp 8",
        {},
        {"tp": 8},
    ),
    # https://github.com/vllm-project/vllm/issues/7714
    (
        "vllm",
        "vllm serve meta-llama/Meta-Llama-3.1-8B-Instruct --kv-cache-dtype fp8",
        {"--model": MODEL},
        {"kv.cache_dtype": "fp8"},
    ),
    # https://github.com/vllm-project/vllm/pull/27058
    (
        "vllm",
        """VLLM_DISABLE_COMPILE_CACHE=1 vllm serve /data/models/deepseek-ai/DeepSeek-R1-0528 \\
            --host localhost --port 8000 --swap-space 64 --disable-log-requests --dtype auto \\
            --max-model-len 8192 --tensor-parallel-size 8 --max-num-seqs 1024 \\
            --trust-remote-code --block-size 1 --gpu-memory-utilization 0.90 \\
            --max-num-batched-tokens 131072 --no-enable-prefix-caching --async-scheduling \\
            --compilation-config='{"pass_config":{"enable_noop":true},"cudagraph_mode":"FULL"}'""",
        {"--model": "meta-llama/Llama-3.1-70B"},
        {"tp": 8, "kv.block_size": 1, "engine.async_scheduling": True},
    ),
    # https://docs.sglang.io/advanced_features/server_arguments.html
    (
        "sglang",
        "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B-Instruct --tp 2 "
        "--enable-p2p-check",
        {},
        {"tp": 2},
    ),
    (
        "sglang",
        "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B-Instruct "
        "--mem-fraction-static 0.7",
        {},
        {"kv.gpu_memory_utilization": 0.7},
    ),
    (
        "sglang",
        "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B-Instruct "
        "--chunked-prefill-size 4096",
        {},
        {"engine.max_num_batched_tokens": 4096},
    ),
    # https://cookbook.sglang.io/docs/autoregressive/Llama/Llama3.1
    (
        "sglang",
        "sglang serve \\\n --model-path meta-llama/Llama-3.1-70B-Instruct \\\n --tp 2",
        {},
        {"tp": 2},
    ),
]


@pytest.mark.parametrize(("engine", "command", "flags", "expected"), PUBLIC)
def test_commands_that_people_wrote(
    engine: str, command: str, flags: dict[str, Any], expected: dict[str, Any]
) -> None:
    values = values_of(engine, command, flags=LOAD | flags)
    values["tp"] = values.get("engine.tensor_parallel_size", 1)
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("engine", "command", "because"),
    [
        # https://github.com/vllm-project/vllm/pull/8804
        (
            "vllm",
            "python  -m vllm.entrypoints.openai.api_server --model meta-llama/Meta-Llama-3-8B "
            "--swap-space 16 --disable-log-requests --use-v2-block-manager "
            "--tensor-parallel-size 1 --pipeline-parallel-size 1 --gpu-memory-utilization 0.90 "
            "--num-scheduler-steps 8 --port 9000 --worker-use-ray 2>&1 | tee output.log",
            ["--num-scheduler-steps 8: not modelled"],
        ),
        # https://huggingface.co/lukealonso/MiniMax-M2.7-NVFP4/discussions/10
        (
            "vllm",
            "CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=8 VLLM_USE_FLASHINFER_MOE_FP4=0 "
            "vllm serve Qwen/Qwen3-30B-A3B --served-model-name MM-27 --tensor-parallel-size 2 "
            "--disable-custom-all-reduce --enable_expert_parallel --max-num-seqs 8 "
            "--kv-cache-dtype turboquant_k8v4 --max-model-len 30k",
            ["--kv-cache-dtype turboquant_k8v4: not modelled"],
        ),
        # one engine of several; https://github.com/vllm-project/aibrix, samples/disaggregation
        (
            "vllm",
            "vllm serve Qwen/Qwen3-8B --kv-transfer-config "
            '\'{"kv_connector":"NixlConnector","kv_role":"kv_producer"}\'',
            ["not modelled: keys and values that go from prefill to decode", "with pools"],
        ),
        (
            "sglang",
            "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B "
            "--disaggregation-mode decode --disaggregation-transfer-backend=nixl",
            ["--disaggregation-mode decode: not modelled: ", "with pools"],
        ),
    ],
)
def test_commands_that_would_be_predicted_wrongly(
    engine: str, command: str, because: list[str]
) -> None:
    message = refused(engine, command)
    assert all(part in message for part in because), message
    assert message.count("not modelled: ") == 1


# What a user is told


def test_the_report_says_what_became_of_each_flag() -> None:
    reading = read(
        "vllm",
        "VLLM_LOGGING_LEVEL=INFO vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4 "
        "--max-model-len 32k --enable-lora --ubatch-size 4 --host 0.0.0.0 --port 80",
        verbose=True,
    )
    lines = [" ".join(line.split()) for line in reading.report.splitlines()]
    for line in (
        "Read by the flags of vLLM 0.25.1.",
        "-tp 4 engine.tensor_parallel_size: 4",
        "--max-model-len 32k engine.max_model_len: 32000",
        "--enable-lora lora.enabled: true",
        "--ubatch-size 4 only enable_dbo's two micro-batches are modelled",
        "--port where the server listens, and who may ask",
        "VLLM_LOGGING_LEVEL paths, logs and keys",
        "kv.gpu_memory_utilization: 0.92, the default of vLLM 0.25.1",
        "hardware.gpu: H200, assumed: the command does not say",
    ):
        assert line in lines, line
    assert (
        "3 others have no effect"
        in read("vllm", f"{SERVE['vllm']} --host 0 --port 8 --uds x").report
    )


def test_the_file_says_where_each_value_comes_from() -> None:
    command = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 64 --enable-elastic-ep"
    text = read("vllm", command).text
    assert text.startswith(f"# {command}\n")
    assert "max_num_seqs: 64" in text
    assert "# --max-num-seqs 64\n" in text
    assert "# Ignored: --enable-elastic-ep, not modelled: experts are predicted" in text


def test_an_image_of_another_version_is_told() -> None:
    report = read("vllm", f"docker run vllm/vllm-openai:v0.10.1 --model {MODEL}").report
    assert "tagged 0.10.1" in report
    assert "tagged" not in read("vllm", f"docker run vllm/vllm-openai:v0.25 --model {MODEL}").report


def test_sglang_is_told_to_be_read_as_vllm() -> None:
    reading = read("sglang", SERVE["sglang"])
    for text in (reading.report, reading.text.replace("# ", "")):
        assert "so the prediction is of vLLM with these settings." in " ".join(text.split())
    assert yaml.safe_load(reading.text)["engine"]["profile"] == "vllm-0.25"


def test_secrets_do_not_reach_the_file_or_the_report() -> None:
    command = (
        f"HF_TOKEN=hf_secret docker run -e VLLM_API_KEY=secret1 vllm/vllm-openai --model {MODEL} "
        "--api-key secret2 secret3 --hf-token secret4 --ssl-keyfile secret5"
    )
    reading = read("vllm", command, verbose=True)
    assert "secret" not in reading.text + reading.report


def test_unknown_flags_have_a_hint_and_can_be_ignored() -> None:
    command = f"{SERVE['vllm']} --max-num-sequences 3 --max-model-len 4096"
    message = refused("vllm", command)
    assert "no flag of vLLM 0.25.1; did you mean '--max-num-seqs'?" in message
    assert message.endswith("--ignore max-num-sequences")
    values = values_of("vllm", command, ignored=["max-num-sequences"])
    assert values["engine.max_model_len"] == 4096


@pytest.mark.parametrize("name", ["-dc", "dc", "diffusion-config", "diffusion_config"])
def test_ignoring_takes_any_spelling(name: str) -> None:
    reading = read("vllm", f"{SERVE['vllm']} -dc x", ignored=[name])
    assert "Left out: -dc x, not modelled: diffusion" in reading.text


@pytest.mark.parametrize(
    ("engine", "command", "message"),
    [
        ("vllm", "vllm serve", "names no model"),
        ("vllm", "vllm serve meta-llama/Llama-3.1-8", "did you mean meta-llama/Llama-3.1-8B"),
        ("vllm", "vllm serve nobody/Nothing-70B", "--model PATH_OR_NAME"),
        ("vllm", f"vllm bench serve --model {MODEL}", "starts no vLLM server"),
        ("vllm", SERVE["sglang"], "fleetcast scenario from-sglang"),
        ("sglang", SERVE["vllm"], "fleetcast scenario from-vllm"),
        ("vllm", f"{SERVE['vllm']} extra", "'extra' belongs to no flag"),
        ("vllm", f"vllm serve other --model {MODEL}", "'other' belongs to no flag"),
        ("vllm", f"{SERVE['vllm']} --no-enforce-eager=1", "ignored explicit argument '1'"),
        ("vllm", f"{SERVE['vllm']} --port=--", "--port needs a value"),
        ("vllm", f"{SERVE['vllm']} --max-num-seqs", "--max-num-seqs needs a value"),
        ("vllm", f"{SERVE['vllm']} --max-num-seqs --port 3", "--max-num-seqs needs a value"),
        ("vllm", f"{SERVE['vllm']} --max-num-seqs many", "must be a whole number, not 'many'"),
        ("vllm", f"{SERVE['vllm']} --max-num-seqs $N", "does not set that variable"),
        ("vllm", f"{SERVE['vllm']} --max-num-seqs 0", "--max-num-seqs 0: engine.max_num_seqs"),
        ("vllm", f"{SERVE['vllm']} --max-model-len 8.5K", "such as 4096, 25.6k or 8K"),
        ("vllm", f"{SERVE['vllm']} -cc not-json", "must be JSON"),
        ("vllm", f"{SERVE['vllm']} --config none.yaml", "cannot be read here"),
        ("vllm", f"{SERVE['vllm']} 'open", "cannot be read: no closing quotation"),
        ("vllm", "", "starts no vLLM server"),
    ],
)
def test_what_cannot_be_read_is_said(engine: str, command: str, message: str) -> None:
    assert message in refused(engine, command)


# How commands are written


@pytest.mark.parametrize(
    "command",
    [
        f"vllm serve {MODEL} --max-num-seqs 7",
        f"vllm serve --max-num-seqs 7 {MODEL}",
        f"vllm serve --model {MODEL} --max_num_seqs=7",
        f"$ vllm serve {MODEL} --max-num-seqs 9 --max-num-seqs 7  # twice: the last",
        f"nohup python3 -u -m vllm.entrypoints.openai.api_server --model={MODEL} "
        "--max-num-seqs 7 > log 2>&1 &",
        f"cd /srv && source env/bin/activate; numactl -N 0 /opt/bin/vllm serve {MODEL} \\ \n"
        "  --max-num-seqs 7 | tee log",
        f"MODEL={MODEL}\nN=7\nvllm serve ${{MODEL}} --max-num-seqs ${{N:-9}} --port ${{PORT:-80}}",
        f"bash -c 'exec vllm serve {MODEL} --max-num-seqs 7'",
        f"--model {MODEL} --max-num-seqs 7",
        f"sudo docker run -dit --rm --gpus '\"device=0,1\"' -eA=b -p8000:80 --name x "
        f"--entrypoint vllm vllm/vllm-openai serve {MODEL} --max-num-seqs 7",
        f"docker run --gpus=all ghcr.io/me/mine bash -lc 'vllm serve {MODEL} --max-num-seqs 7'",
        f"> vllm serve {MODEL} --max-num-seqs 7",
        f"$\nvllm serve {MODEL} --model={MODEL} --max-num-seqs=7 --async-scheduling true "
        "--async-scheduling",
    ],
)
def test_ways_to_write_a_command(command: str) -> None:
    values = values_of("vllm", command)
    assert (values["model"], values["engine.max_num_seqs"]) == (MODEL, 7)


def test_sizes_and_values_that_leave_a_field_alone() -> None:
    command = f"{SERVE['vllm']} --max-model-len {{}} --max-num-batched-tokens 25.6k"
    values = values_of("vllm", command.format("auto"))
    assert "engine.max_model_len" not in values
    assert values["engine.max_num_batched_tokens"] == 25_600
    assert "engine.max_model_len" not in values_of("vllm", command.format("-1"))
    plain = values_of("vllm", SERVE["vllm"])
    harmless = (
        "-dcp 1 --cpu-offload-gb 0.0 --dtype bfloat16 --quantization None -O2 --no-enable-lora"
    )
    assert values_of("vllm", f"{SERVE['vllm']} {harmless} --no-enforce-eager") == plain


def test_json_flags_in_parts_and_whole() -> None:
    parts = f"{SERVE['vllm']} -cc.max_cudagraph_capture_size=64 -cc.pass_config.fuse true"
    whole = f"{SERVE['vllm']} -cc '{json.dumps({'max_cudagraph_capture_size': 64})}'"
    for command in (parts, whole):
        assert values_of("vllm", command)["engine.max_cudagraph_capture_size"] == 64
    eager = f'{SERVE["vllm"]} --compilation-config \'{{"cudagraph_mode": "NONE"}}\''
    assert values_of("vllm", eager)["engine.max_cudagraph_capture_size"] == 1
    pieces = values_of("vllm", f"{SERVE['vllm']} -cc.cudagraph_mode=PIECEWISE")
    assert pieces["engine.cudagraph_mode"] == "PIECEWISE"
    drafts = f"{SERVE['vllm']} --speculative-config.method=eagle -sc.num_speculative_tokens 4"
    expected = {"method": "eagle", "num_speculative_tokens": 4}
    assert values_of("vllm", drafts)["engine.speculative"] == expected
    report = read("vllm", f"{SERVE['vllm']} -cc.custom_ops none").report
    assert "only its sizes and modes of CUDA graphs are read" in report


def test_a_config_file_is_read_and_the_command_wins(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(
        "model: meta-llama/Llama-3.1-8B\nmax_num_seqs: 9\nmax-model-len: 8k\n"
        "enable-prefix-caching: false\nenforce-eager: true\nserved-model-name: [a, b]\n"
        "compilation-config: {cudagraph_capture_sizes: [1, 2]}\n"
    )
    values = values_of("vllm", f"vllm serve --config {config} --max-num-seqs 7")
    assert values["engine.max_num_seqs"] == 7
    assert values["engine.max_model_len"] == 8000
    # vLLM takes a false for a flag that is not given.
    assert "kv.enable_prefix_caching" not in values
    # https://docs.sglang.io/docs/advanced_features/server_arguments
    config.write_text("model-path: meta-llama/Meta-Llama-3-8B-Instruct\ntensor-parallel-size: 2\n")
    values = values_of("sglang", f"python -m sglang.launch_server --config {config}")
    assert values["engine.tensor_parallel_size"] == 2


def test_ranks_are_replicas_of_dense_models_only() -> None:
    values = values_of(
        "vllm", f"{SERVE['vllm']} --data-parallel-size 4 --data-parallel-size-local 2"
    )
    assert (values["pool.replicas"], values["pool.router"]) == (4, "least_loaded")
    values = values_of("vllm", "vllm serve Qwen/Qwen3-30B-A3B -dp 2 --nnodes 2")
    assert values["engine.data_parallel_size"] == 2
    assert "pool.replicas" not in values
    assert values_of("vllm", "vllm serve Qwen/Qwen3-30B-A3B -dp 1")["pool.replicas"] == 1


def test_options_and_settings_win_over_the_command() -> None:
    flags = LOAD | {"--model": "Qwen/Qwen3-8B", "--gpu": "H100", "--slo-ttft": 0.5}
    reading = read(
        "vllm",
        f"{SERVE['vllm']} --max-num-seqs 9 --block-size 32",
        flags=flags,
        overrides=["engine.max_num_seqs=7", "pool.replicas=2"],
    )
    values = flat(yaml.safe_load(reading.text))
    assert values["model"] == "Qwen/Qwen3-8B"
    assert values["hardware.gpu"] == "H100"
    assert values["engine.max_num_seqs"] == 7
    assert values["pool.replicas"] == 2
    assert values["slo.ttft_s"] == 0.5
    assert "assumed" not in reading.text + reading.report


def test_without_a_workload_the_file_can_be_completed() -> None:
    reading = read("vllm", SERVE["vllm"], flags={})
    assert "No workload" in reading.report
    head, *workloads = reading.text.split("# workload:\n")
    assert "workload" not in yaml.safe_load(head)
    assert len(workloads) == 3
    for workload in workloads:
        lines = ["workload:", *(line.removeprefix("# ") for line in workload.splitlines())]
        parse_scenario(yaml.safe_load("\n".join([head, *lines])))


def test_what_does_not_fit_is_told_but_written() -> None:
    reading = read(
        "vllm", "vllm serve meta-llama/Llama-3.1-70B --quantization fp8", flags={"--gpu": "L4"}
    )
    assert "As it stands it cannot run: meta-llama/Llama-3.1-70B does not fit L4" in reading.report
    assert yaml.safe_load(reading.text)["engine"]["quantization"] == "fp8"


# Properties

WORDS = st.lists(
    st.text(
        st.characters(
            codec="utf-8", exclude_characters="$", exclude_categories=["Cc", "Zl", "Zp", "Cs"]
        ),
        min_size=1,
    ),
    max_size=5,
).filter(lambda words: not any(w.startswith(("#", "<", ">")) or w[0].isdigit() for w in words))


@given(WORDS)
def test_a_quoted_text_is_its_words(words: list[str]) -> None:
    table = load_table("vllm")
    values = [f"v{word}" for word in words]
    text = " \\\n  ".join(["vllm serve", *map(shlex.quote, values)])
    assert read_words([text], table).arguments == values
    assert read_words(["vllm", "serve", *values], table).arguments == values


@given(st.sampled_from(sorted(load_table("vllm").flags)), st.integers(0, 10**6))
def test_spellings_are_equal(name: str, number: int) -> None:
    table = load_table("vllm")
    if table.flags[name].takes != "value":
        return
    apart = read_given([name, str(number)], table)
    assert read_given([f"{name}={number}"], table) == apart
    assert read_given([f"--{name[2:].replace('-', '_')}", str(number)], table) == apart or (
        not name.startswith("--")
    )


# The command line


def run(*args: str, text: str | None = None) -> Result:
    result = CliRunner().invoke(app, ["scenario", *args], input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_yaml_to_stdout_and_the_report_apart() -> None:
    options = ("--gpu", "H100", "--input-tokens", "100", "--output-tokens", "5", "--rate", "2")
    result = run("from-vllm", *options, "--num-requests", "9", "--", "vllm", "serve", MODEL)
    assert result.exit_code == 0
    scenario = parse_scenario(yaml.safe_load(result.stdout))
    assert scenario.workload.num_requests == 9
    assert "Read by the flags of vLLM" in result.stderr
    assert run("from-vllm", *options, "-", text=f"vllm serve {MODEL}\n").exit_code == 0


def test_a_file_is_written_beside_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    options = ("--trace", "in/t.csv", "--out", "in/s.yaml")
    result = run("from-sglang", *options, SERVE["sglang"])
    assert result.exit_code == 0
    assert result.stdout.endswith("wrote in/s.yaml; run it with: fleetcast simulate in/s.yaml\n")
    assert yaml.safe_load(Path("in/s.yaml").read_text())["workload"]["trace"]["path"] == "t.csv"
    assert run("from-sglang", *options, SERVE["sglang"]).exit_code == 2
    assert run("from-sglang", *options, "--force", SERVE["sglang"]).exit_code == 0


def test_refusals_exit_with_2() -> None:
    result = run("from-vllm", f"{SERVE['vllm']} -dc x")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--ignore dc" in result.stderr


# Speculation


@pytest.mark.parametrize(
    ("engine", "flags", "expected"),
    [
        (
            "vllm",
            '-sc \'{"model": "a/EAGLE3-x", "num_speculative_tokens": 2}\'',
            {"method": "eagle", "num_speculative_tokens": 2, "draft_vocab_size": 32000},
        ),
        (
            "vllm",
            '-sc \'{"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 5}\'',
            {
                "method": "draft_model",
                "model": "meta-llama/Llama-3.2-1B",
                "num_speculative_tokens": 5,
            },
        ),
        (
            "vllm",
            '-sc \'{"method": "eagle", "num_speculative_tokens": 3, '
            '"speculative_token_tree": "[(0,), (1,), (0, 0)]"}\'',
            {"method": "eagle", "num_speculative_tokens": 3, "tree": [[0], [1], [0, 0]]},
        ),
        (
            "vllm",
            "--spec-method ngram --spec-tokens 4",
            {"method": "ngram", "num_speculative_tokens": 4},
        ),
        (
            "sglang",
            "--speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 8 "
            "--speculative-num-draft-tokens 32 --speculative-draft-model-path a/b",
            {
                "method": "eagle",
                "num_speculative_tokens": 31,
                "draft_vocab_size": 32000,
                "tree": "best",
            },
        ),
        (
            "sglang",
            "--speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 2",
            {"method": "mtp", "num_speculative_tokens": 1},
        ),
        (
            "sglang",
            "--speculative-algorithm DFLASH --speculative-dflash-block-size 16",
            {"method": "dflash", "num_speculative_tokens": 15},
        ),
    ],
)
def test_speculation_is_read(engine: str, flags: str, expected: dict[str, Any]) -> None:
    command = f"{SERVE[engine]} {flags}"
    text = read(engine, command).text
    assert yaml.safe_load(text)["engine"]["speculative"] == expected
    assert "acceptance" in read(engine, command).report


def test_drafting_that_is_not_modelled_is_refused() -> None:
    said = refused("vllm", f'{SERVE["vllm"]} -sc \'{{"method": "suffix"}}\'')
    assert "drafting by suffix is not modelled" in said
    assert "DSPARK" in refused("sglang", f"{SERVE['sglang']} --speculative-algorithm DSPARK")
    # Numbers alone draft nothing.
    alone = f"{SERVE['sglang']} --speculative-num-steps 3"
    assert "engine.speculative" not in values_of("sglang", alone)
