"""Commands as manifests, pages and shells have them, and hundreds of public ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from scenarios.commands import app
from scenarios.server_flags.outcome import Kind
from scenarios.server_flags.reading import read_command
from scenarios.server_flags.shell import Shell
from scenarios.server_flags.table import load_table
from scenarios.server_flags.words import read_words
from sim.errors import ScenarioError

MODEL = "Qwen/Qwen3-32B"
LOAD: dict[str, Any] = {"--rate": 1.0, "--input-tokens": 1000, "--output-tokens": 100}
ARGUMENTS = ["--model", MODEL, "--tensor-parallel-size", "4"]
KINDS: tuple[Kind, ...] = ("set", "reported", "no_effect")


def read(engine: str, text: str, **flags: Any) -> dict[str, Any]:
    values = yaml.safe_load(read_command(engine, [text], flags=LOAD | flags).text)
    assert isinstance(values, dict)
    return values


# One command in many forms

KUBERNETES = f"""\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: qwen}}
spec:
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.11.0
        command: ["/bin/sh", "-c"]
        args:
        - |
          export VLLM_LOGGING_LEVEL=DEBUG
          exec vllm serve {MODEL} \\
            --tensor-parallel-size $(TP)
        env:
        - {{name: TP, value: "4"}}
        - name: HF_TOKEN
          valueFrom: {{secretKeyRef: {{name: hf, key: token}}}}
"""
COMPOSE = f"""\
services:
  llm:
    image: vllm/vllm-openai:latest
    environment: [NCCL_DEBUG=INFO]
    command: >
      --model {MODEL}
      --tensor-parallel-size 4
"""
HELM = f"""\
servingEngineSpec:
  modelSpec:
  - name: qwen
    repository: vllm/vllm-openai
    modelURL: {MODEL}
    vllmConfig: {{tensorParallelSize: 4, maxModelLen: 16384, extraArgs: ["--disable-log-requests"]}}
"""
TEMPLATE = f"""\
args:
  {{{{- if .Values.debug }}}}
  - --uvicorn-log-level=debug
  {{{{- end }}}}
  - --model={MODEL}
  - --tensor-parallel-size
  - "4"
  - --served-model-name
  - {{{{ .Values.name }}}}
"""
FORMS = {
    "a list of words": json.dumps(["vllm", "serve", MODEL, "--tensor-parallel-size", "4"]),
    "arguments as YAML": yaml.safe_dump(ARGUMENTS),
    "flag and value in an item": f"- --model {MODEL}\n- --tensor-parallel-size 4\n",
    "a Python list": f"cmd = ['vllm', 'serve', '{MODEL}', '-tp', '4']",
    "a Dockerfile": f'ENTRYPOINT ["python3", "-m", "vllm.entrypoints.openai.api_server"]\n'
    f'CMD ["--model", "{MODEL}", "--tensor-parallel-size=4"]',
    "Kubernetes": KUBERNETES,
    "compose": COMPOSE,
    "production stack": HELM,
    "Helm's templates": TEMPLATE,
    "a config file": f"model: {MODEL}\nport: 8000\ntensor-parallel-size: 4\n",
    "a quoted page": f"> vllm serve {MODEL} \\\n>   --tensor-parallel-size 4",
    "a terminal": f"$ vllm serve {MODEL} \\\n> --tensor-parallel-size 4",
    "Windows": f"vllm serve {MODEL} ^\r\n  --tensor-parallel-size 4",
    "PowerShell": f"vllm serve {MODEL} `\n  --tensor-parallel-size 4",
    "lost backslashes": f"vllm serve {MODEL}\n  --tensor-parallel-size 4\n  --port 80",
    "joined lines": f"vllm serve {MODEL} \\ --port 80 \\ --tensor-parallel-size 4 \\",
    "a comment between": f"vllm serve {MODEL} \\\n  # two nodes\n  --tensor-parallel-size 4",
    "a comment behind": f"vllm serve {MODEL} \\ # all\n  --tensor-parallel-size 4",
    "a word processor": f"vllm serve \u201c{MODEL}\u201d \u2013tensor-parallel-size 4",
    "redirected first": f"vllm serve {MODEL} > log 2>&1 --tensor-parallel-size 4",
    "in the background": f"nohup vllm serve {MODEL} --tensor-parallel-size 4 &>> log & disown",
    "an array": f'ARGS=(--tensor-parallel-size 4\n  --port 80)\nvllm serve {MODEL} "${{ARGS[@]}}"',
    "a text of flags": f"F='--tensor-parallel-size 4'\nvllm serve {MODEL} $F ${{MORE:-}}",
    "defaults in defaults": f"vllm serve {MODEL} -tp ${{TP:-${{GPUS:-4}}}}",
    "arithmetic": f"N=2\nvllm serve {MODEL} -tp $((N * 2)) --max-model-len $((16*1024))",
    "a loop": f"for i in 0 1; do CUDA_VISIBLE_DEVICES=$i vllm serve {MODEL} -tp 4 & done",
    "a subshell": f"(cd /srv; vllm serve {MODEL} -tp 4)",
    "a file of Python": f"python vllm/entrypoints/openai/api_server.py --model {MODEL} -tp 4",
    "model and flags alone": f"{MODEL} --tensor-parallel-size 4",
    "what is not set": f"vllm serve {MODEL} -tp 4 --port $PORT $EXTRA --served-model-name <name>",
    "a notebook": f"!vllm serve {MODEL} -tp 4",
    "systemd": f"ExecStart=/opt/venv/bin/vllm serve {MODEL} -tp 4",
    "kubectl": f"kubectl run q --image=vllm/vllm-openai -- vllm serve {MODEL} -tp 4",
    "a script in one item": yaml.safe_dump([f"set -e\nvllm serve {MODEL} \\\n -tp 4\n"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_one_command(form: str) -> None:
    values = read("vllm", FORMS[form])
    assert values["model"] == MODEL
    assert values["engine"]["tensor_parallel_size"] == 4


def test_json_without_its_quotes() -> None:
    command = "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --speculative-config "
    for text in (
        '{"method":"mtp","num_speculative_tokens":1}',
        '"{method: mtp}"',
        "{'method':'mtp'}",
    ):
        assert read("vllm", command + text)["engine"]["speculative"]["method"] == "mtp"


def test_other_engines_are_named() -> None:
    with pytest.raises(ScenarioError, match="this command starts TensorRT-LLM"):
        read("vllm", "trtllm-serve Qwen/Qwen3-8B --tp_size 4")


def test_a_trace_that_cannot_be_read_is_told_before_it_is_run(tmp_path: Path) -> None:
    trace, out = tmp_path / "t.csv", tmp_path / "s.yaml"
    options = ("--gpu", "H100", "--trace", str(trace), "--out", str(out), "--force")
    for header, runs in (("timestamp,prompt_tokens,completion_tokens", True), ("a,b,c", False)):
        trace.write_text(f"{header}\n2026-11-29T09:00:00.000Z,900,80\n")
        command = ["scenario", "from-vllm", *options, f"vllm serve {MODEL} -tp 4"]
        text = " ".join(CliRunner().invoke(app, command).output.split())
        assert ("run it with: fleetcast simulate" in text) is runs
        assert ("it cannot run yet, see above" in text) is not runs
        assert ("name them: --columns arrival=COLUMN" in text) is not runs


# What flags mean together


def test_host_memory_of_connectors() -> None:
    """vLLM gives the sum over an engine's GPUs, LMCache and a scenario a part of each."""

    def tiers(flags: str, before: str = "") -> Any:
        return read("vllm", f"{before} vllm serve {MODEL} -tp 4 {flags}")["kv"]["tiers"]

    def connector(name: str, **extra: Any) -> str:
        config = {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}
        return f"--kv-transfer-config '{json.dumps(config)}'"

    assert tiers("--kv-offloading-size 100") == {"host": {"capacity_gib": 25.0}}
    offloading = connector("OffloadingConnector", cpu_bytes_to_use=8 << 30)
    assert tiers(offloading) == {"host": {"capacity_gib": 2.0}}
    # 16 tokens x 64 layers x 2 heads of keys and values a GPU x 128 x 2 bytes: 2 x 524,288 bytes
    blocks = connector("OffloadingConnector", num_cpu_blocks=1024, block_size=16)
    assert tiers(blocks) == {"host": {"capacity_gib": 1.0}}
    before = "LMCACHE_LOCAL_CPU=True LMCACHE_MAX_LOCAL_CPU_SIZE=20"
    assert tiers(connector("LMCacheConnectorV1"), before) == {"host": {"capacity_gib": 20.0}}
    several = connector(
        "MultiConnector",
        connectors=[
            {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
            {"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"},
        ],
    )
    assert tiers(several) == {"host": {"capacity_gib": 5.0}}
    hicache = "sglang serve --model-path Qwen/Qwen3-32B --tp 4 --enable-hierarchical-cache"
    found = read("sglang", f"{hicache} --hicache-size 50")["kv"]["tiers"]["host"]
    assert found["capacity_gib"] == pytest.approx(50e9 / 2**30, abs=1e-3)


def test_longer_positions() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    for flag, value in (
        ("--rope-scaling", yarn),
        ("--hf-overrides", {"rope_scaling": yarn}),
        ("--hf-overrides", {"text_config": {"rope_parameters": yarn | {"rope_theta": 1e6}}}),
    ):
        command = f"vllm serve {MODEL} -tp 4 --max-model-len 131072 {flag} '{json.dumps(value)}'"
        reading = read_command("vllm", [command], flags=LOAD | {"--gpu": "H100"})
        assert "It fits" in reading.report
        assert yaml.safe_load(reading.text)["engine"]["max_position_embeddings"] == 131_072
    parts = "".join(f" --hf-overrides.rope_scaling.{key} {value}" for key, value in yarn.items())
    found = read("vllm", f"vllm serve {MODEL} -tp 4 --max-model-len 131072{parts}")["engine"]
    assert found["max_position_embeddings"] == 131_072
    longer = f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve {MODEL} -tp 4 --max-model-len 80000"
    assert read("vllm", longer)["engine"]["max_position_embeddings"] == 80_000
    plain = f"vllm serve {MODEL} --rope-scaling '{json.dumps({'rope_type': 'llama3'})}'"
    assert "max_position_embeddings" not in read("vllm", plain)["engine"]


def test_a_models_own_drafter_in_sglang() -> None:
    command = (
        "python3 -m sglang.launch_server --model-path {} --tp 8 --speculative-algorithm EAGLE "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    )
    own = {"method": "mtp", "num_speculative_tokens": 3}
    deepseek = command.format("deepseek-ai/DeepSeek-R1")
    reading = read_command("sglang", [deepseek], flags=LOAD | {"--gpu": "H200"})
    assert yaml.safe_load(reading.text)["engine"]["speculative"] == own
    assert "It fits" in reading.report
    export = f"{deepseek} --speculative-draft-model-path lmsys/DeepSeek-V3-NextN"
    assert read("sglang", export)["engine"]["speculative"] == own
    other = f"{command.format(MODEL)} --speculative-draft-model-path someone/Qwen3-32B-EAGLE"
    assert read("sglang", other)["engine"]["speculative"]["method"] == "eagle"


def test_attention_by_requests_in_sglang() -> None:
    command = "sglang serve --model-path deepseek-ai/DeepSeek-V3 --dp 8 --enable-dp-attention"
    engine = read("sglang", f"{command} --tp 16 --ep 16")["engine"]
    assert (engine["tensor_parallel_size"], engine["data_parallel_size"]) == (2, 8)
    assert engine["enable_expert_parallel"] is True
    assert read("sglang", f"{command} --tp 8")["pool"]["replicas"] == 1
    with pytest.raises(ScenarioError, match="modelled for models with experts"):
        read("sglang", f"sglang serve --model-path {MODEL} --tp 8 --dp 8 --enable-dp-attention")


# Public commands


def public_commands() -> list[str]:
    text = Path(__file__).with_name("public_commands.txt").read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_nine_of_ten_public_commands_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    """A model that the catalog lacks is replaced by one with, or without, experts."""
    commands = public_commands()
    accepted, stand_ins, kinds = 0, 0, Counter[str]()
    for command in commands:
        engine = "sglang" if "sglang serve" in command else "vllm"
        reading = None
        for model in (None, "Qwen/Qwen3-235B-A22B", MODEL):
            try:
                reading = read_command(engine, [command], flags=LOAD | {"--model": model})
            except ScenarioError:
                continue
            stand_ins += model is not None
            break
        if reading is not None:
            accepted += 1
            counted = next(line for line in reading.report.splitlines() if " flag" in line[:8])
            for part in counted.partition(": ")[2].rstrip(".").split(", "):
                number, _, kind = part.partition(" ")
                kinds[kind] += int(number)
    with capsys.disabled():
        print(
            f"\n{accepted} of {len(commands)} read, {stand_ins} with another model; {dict(kinds)}"
        )
    assert len(commands) >= 500
    assert accepted >= 0.9 * len(commands)


WORDS = st.sampled_from(
    [
        *("vllm", "serve", MODEL, "--tensor-parallel-size", "4", "docker run", "sh -c", "A=b"),
        *(
            "'",
            '"',
            "\\",
            "\n",
            "`",
            "$(",
            "$",
            "${X:-",
            "}",
            "{",
            '{"a":',
            ">",
            "<",
            "|",
            "&",
            ";",
        ),
        *("(", ")", "#", "=(", "- ", "[", "]", "--", "-", "args:", "command:", "...", ","),
        *("\u201c", "\u2014x"),
    ]
)


@given(st.lists(WORDS, max_size=14), st.sampled_from(["", " "]))
def test_no_text_gives_a_traceback(words: list[str], between: str) -> None:
    text = between.join(words)
    for engine in ("vllm", "sglang"):
        try:
            read_words([text], load_table(engine))
            list(Shell().commands(text))
            read_command(engine, [text], flags=LOAD)
        except ScenarioError:
            pass
