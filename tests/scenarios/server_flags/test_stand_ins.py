"""Commands whose model is known by its name alone, and models that stand in for others."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from costmodels.formats import ModelPrecision
from scenarios.build.builder import build
from scenarios.files.load import parse_scenario
from scenarios.server_flags.reading import Reading, read_command
from sim.errors import ScenarioError

FLAGS = {"--gpu": "H100", "--input-tokens": 1000, "--output-tokens": 100, "--rate": 1.0}
SERVED = "vllm serve Qwen/Qwen3-32B-FP8 -tp 2"


def read(command: str, model: str | None = None, engine: str = "vllm") -> Reading:
    return read_command(engine, [command], flags=FLAGS | {"--model": model})


def values(reading: Reading) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(reading.text)
    return found


def blocks(reading: Reading) -> int:
    return build(parse_scenario(values(reading))).replica.memory.blocks.num_gpu_blocks


def test_a_quantized_checkpoint_is_read_from_its_name() -> None:
    reading = read(SERVED)
    assert values(reading)["model"] == "Qwen/Qwen3-32B-FP8"
    assert "fp8, a scale a block of 128 x 128" in " ".join(reading.report.split())
    assert blocks(reading) == pytest.approx(28_322, rel=0.001)


def test_a_stand_in_keeps_the_precision_and_the_command() -> None:
    reading = read(SERVED, "Qwen/Qwen3-32B")
    assert reading.text.splitlines()[0] == f"# {SERVED}"
    assert values(reading)["model"] == "Qwen/Qwen3-32B"
    assert values(reading)["engine"]["quantization"] == "fp8_per_block"
    report = " ".join(reading.report.split())
    assert "Qwen/Qwen3-32B stands in for it, as --model asks" in report
    assert "engine.quantization keeps what the name says: fp8" in report
    assert blocks(reading) == pytest.approx(28_322, rel=0.001)


@pytest.mark.parametrize(
    ("served", "method"),
    [
        ("someone/Unknown-32B-FP8", "fp8"),
        ("someone/Unknown-32B-AWQ", "awq"),
        ("someone/Unknown-32B-GPTQ-Int4", "gptq"),
        ("someone/Unknown-32B-quantized.w8a8", "w8a8_int8"),
        ("nvidia/Unknown-32B-NVFP4", "modelopt_fp4"),
        ("someone/Unknown-32B", None),
        ("someone/Unknown-32B-BF16", None),
    ],
)
def test_what_a_name_says_of_precision_becomes_a_method(served: str, method: str | None) -> None:
    reading = read(f"vllm serve {served}", "Qwen/Qwen3-32B")
    assert values(reading)["engine"].get("quantization") == method
    assert f"# vllm serve {served}" in reading.text


def test_a_flag_of_the_command_is_stronger_than_its_name() -> None:
    reading = read(f"{SERVED} --quantization awq", "Qwen/Qwen3-32B")
    assert values(reading)["engine"]["quantization"] == "awq"


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve cyankiwi/Qwen3-30B-A3B-AWQ-INT4 --quantization compressed-tensors",
        "vllm serve casperhansen/llama-3-8b-instruct-awq --quantization awq_marlin",
        "vllm serve nvidia/DeepSeek-R1-FP4 -tp 8 --quantization modelopt_fp4",
        "vllm serve openai/gpt-oss-20b --quantization mxfp4",
        "vllm serve Qwen/Qwen3-32B-FP8 --quantization fp8",
    ],
)
def test_a_flag_that_repeats_the_checkpoint_s_format_changes_nothing(command: str) -> None:
    plain, _, _ = command.partition(" --quantization")
    assert precision(read(command)) == precision(read(plain))


def precision(reading: Reading) -> ModelPrecision:
    scenario = parse_scenario(values(reading))
    return build(scenario).replica.model.precision


def test_a_format_of_other_checkpoints_is_still_refused() -> None:
    with pytest.raises(ScenarioError, match="--quantization compressed-tensors"):
        read("vllm serve Qwen/Qwen3-8B --quantization compressed-tensors")


def test_formats_that_cannot_be_kept_are_said() -> None:
    report = " ".join(read("vllm serve x/Y-32B-GPTQ-Int8", "Qwen/Qwen3-32B").report.split())
    assert "which engine.quantization cannot set: bfloat16 is used" in report
    report = " ".join(read("vllm serve x/Y-20b-FP8", "openai/gpt-oss-20b").report.split())
    assert "the stand-in's holds" in report


def test_a_command_without_a_model_is_quoted_without_one() -> None:
    reading = read("vllm serve -tp 2", "Qwen/Qwen3-32B")
    assert reading.text.splitlines()[0] == "# vllm serve -tp 2"
    assert values(reading)["model"] == "Qwen/Qwen3-32B"


def test_an_unknown_model_says_which_file_to_give() -> None:
    with pytest.raises(ScenarioError) as error:
        read("vllm serve someone/Thing-32B")
    assert "someone/Thing-32B/resolve/main/config.json" in str(error.value)
    assert "fleetcast[hub]" in str(error.value)
    assert "--model PATH_OR_NAME" in str(error.value)
