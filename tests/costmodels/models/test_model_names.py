"""What ids of models say of themselves: precision, shape, and near names."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.hardware.gpus import load_gpu
from costmodels.models.catalog import load_model
from costmodels.models.model_names import form_in_name, words_of
from costmodels.models.published import checkpoints
from costmodels.models.quantization import quantize
from sim.errors import ScenarioError

NAMES = Path(__file__).with_name("served_names.txt")

GEMMA = "google/gemma-3-27b-it"
RED = "RedHatAI/gemma-3-27b-it-quantized.w4a16"
MAGIC = "neuralmagic/Llama-3.1-8B-Instruct-quantized.w8a8"
# id, the known checkpoint of its shape, formats of attention, experts (or FFN), and cache.
READ = [
    ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B", "fp8_block", "fp8_block", "bfloat16"),
    ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B", "fp8", "fp8", "bfloat16"),
    ("nvidia/Llama-3.3-70B-Instruct-FP8", "Llama-3.3-70B-Instruct", "fp8", "fp8", "fp8"),
    ("nvidia/Llama-3.3-70B-Instruct-FP4", "Llama-3.3-70B-Instruct", "nvfp4", "nvfp4", "fp8"),
    ("nvidia/DeepSeek-R1-0528-FP4-v2", "DeepSeek-R1-0528", "bfloat16", "nvfp4", "fp8"),
    ("RedHatAI/Qwen3-8B-NVFP4", "Qwen/Qwen3-8B", "nvfp4", "nvfp4", "bfloat16"),
    ("unsloth/Qwen3.8-27B-NVFP4", "Qwen/Qwen3.8-27B", "nvfp4", "nvfp4", "bfloat16"),
    ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen2.5-7B", "int4_g128", "int4_g128", "bfloat16"),
    ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "Qwen2.5-72B", "w8a16", "w8a16", "bfloat16"),
    ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "Qwen2.5-72B", "int4_g128", "int4_g128", "bfloat16"),
    ("TheBloke/Llama-2-7B-Chat-GPTQ", "Llama-2-7b-hf", "int4_g128", "int4_g128", "bfloat16"),
    (
        "neuralmagic/Llama-3.1-8B-Instruct-quantized.w8a8",
        "Llama-3.1-8B",
        "int8",
        "int8",
        "bfloat16",
    ),
    (
        "RedHatAI/gemma-3-27b-it-quantized.w4a16",
        "gemma-3-27b-it",
        "int4_g128",
        "int4_g128",
        "bfloat16",
    ),
    ("Intel/Qwen3.5-9B-int4-AutoRound", "Qwen/Qwen3.5-9B", "int4_g128", "int4_g128", "bfloat16"),
    ("unsloth/Meta-Llama-3.1-8B-bnb-4bit", "Llama-3.1-8B", "int4_g32", "int4_g32", "bfloat16"),
    ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B", "int4_g32", "int4_g32", "bfloat16"),
    ("amd/Llama-3.1-70B-Instruct-FP8-KV", "Llama-3.1-70B", "fp8", "fp8", "fp8"),
    ("unsloth/gpt-oss-120b-BF16", "openai/gpt-oss-120b", "bfloat16", "bfloat16", "bfloat16"),
    ("amd/gpt-oss-120b-w-mxfp4-a-fp8", "openai/gpt-oss-120b", "bfloat16", "mxfp4", "bfloat16"),
    ("amd/Llama-3.3-70B-Instruct-MXFP4", "Llama-3.3-70B-Instruct", "mxfp4", "mxfp4", "bfloat16"),
    ("ISTA-DASLab/gemma-3-27b-it-GPTQ-4b-128g", GEMMA, "int4_g128", "int4_g128", "bfloat16"),
    ("unsloth/DeepSeek-V3.1-BF16", "DeepSeek-V3", "bfloat16", "bfloat16", "bfloat16"),
    ("cyankiwi/GLM-4.7-Flash-AWQ-4bit", "GLM-4.7-Flash", "int4_g128", "int4_g128", "bfloat16"),
]


@pytest.mark.parametrize(("name", "like", "attention", "experts", "cache"), READ)
def test_precision_in_the_name(
    name: str, like: str, attention: str, experts: str, cache: str
) -> None:
    model, known = load_model(name), load_model(like)
    assert model.name == name
    assert model.layers == known.layers
    assert model.precision.attention == attention
    assert (model.precision.experts if model.num_experts else model.precision.ffn) == experts
    assert model.precision.kv == cache
    note = model.notes[0]
    assert note.startswith(f"{name} is taken to have the shape of ")
    assert like.rpartition("/")[2] in note
    assert "no config.json was read" in note


@pytest.mark.parametrize(
    ("name", "like"),
    [
        ("NousResearch/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("cognitivecomputations/dolphin-2.6-mistral-7b", "mistralai/Mistral-7B-Instruct-v0.2"),
        ("NousResearch/Nous-Hermes-2-Mixtral-8x7B-DPO", "mistralai/Mixtral-8x7B-v0.1"),
        ("elyza/Llama-3-ELYZA-JP-8B", "meta-llama/Meta-Llama-3-8B"),
        ("tokyotech-llm/Llama-3.3-Swallow-70B-Instruct-v0.4", "Llama-3.3-70B-Instruct"),
        ("/models/Qwen3-32B", "Qwen/Qwen3-32B"),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/9a8b", "Qwen/Qwen3-32B"),
        (r"E:\models\Qwen1.5-1.8B-Chat-AWQ", "Qwen/Qwen1.5-1.8B"),
        ("/data/qwen35-27b-awq", "Qwen/Qwen3.5-27B"),
        ("/data/qwen2_5_14b_w8a8/", "Qwen/Qwen2.5-14B"),
        ("llama3.1:8b", "meta-llama/Llama-3.1-8B"),
        ("saves/qwen2_5-coder-1.5b/freeze/sft", "Qwen/Qwen2.5-Coder-1.5B"),
        ("huihui-ai/Huihui-GLM-4.7-Flash-abliterated", "zai-org/GLM-4.7-Flash"),
        ("someone/distilled-phi4-mini-awq", "microsoft/Phi-4-mini-instruct"),
        ("moonshotai/Kimi-K2-Instruct-0905-FP8", "moonshotai/Kimi-K2-Instruct"),
    ],
)
def test_fine_tunes_and_folders_have_the_shape_in_their_name(name: str, like: str) -> None:
    assert load_model(name).layers == load_model(like).layers
    assert load_model(name).notes


def test_what_a_row_leaves_out_is_said() -> None:
    assert load_model("Qwen/Qwen2.5-Omni-7B").notes == (
        "Qwen/Qwen2.5-Omni-7B: towers and talker are not counted",
    )
    assert "read as Llama's layers" in load_model("internlm/internlm3-8b-instruct").notes[0]


def test_towers_are_part_of_multimodal_rows() -> None:
    seven = load_model("Qwen/Qwen2.5-VL-7B-Instruct-AWQ")
    assert seven.total_params / 1e9 == pytest.approx(8.29, rel=0.005)
    assert [tower.modality for tower in seven.towers] == ["vision"]
    assert len(seven.notes) == 1


def test_a_note_names_the_alias_that_the_name_is_of() -> None:
    assert "the shape of deepseek-ai/DeepSeek-R1," in load_model("nvidia/DeepSeek-R1-FP4").notes[0]


def test_a_folder_s_files_are_taken_to_be_the_publisher_s() -> None:
    assert load_model("/data/Qwen3-32B-FP8/").precision.attention == "fp8_block"


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct"])
def test_nothing_is_assumed_of_a_listed_id(name: str) -> None:
    assert load_model(name).notes == ()


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-Reranker-8B",
        "Qwen/Qwen3-Embedding-8B",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "google/gemma-4-31B-it-assistant",
        "meta-llama/Llama-3.2-11B-Vision-Instruct",
        "nvidia/Llama-3.1-Nemotron-Nano-4B-v1.1",
        "zai-org/GLM-5.3-Flash",
        "zai-org/GLM-OCR",
        "lmsys/llava-llama-3-8b",
    ],
)
def test_names_of_another_shape_or_kind_are_refused(name: str) -> None:
    with pytest.raises(ScenarioError, match=r"unknown model .*\n.*config\.json says all sizes"):
        load_model(name)


@pytest.mark.parametrize(
    "name",
    [
        "QuantTrio/Qwen3.6-27B-AWQ-6Bit",
        "x/Qwen3-8B-exl2",
        "x/Qwen3-8B-GGUF:Q2_K",
        "x/Qwen3-8B-WFP4FP8",
    ],
)
def test_formats_that_are_not_modelled_are_refused(name: str) -> None:
    with pytest.raises(ScenarioError, match="modelled; name a checkpoint in fp8"):
        load_model(name)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("Qwen/Qwen3-235B-A22", "Qwen/Qwen3-235B-A22B"),
        ("meta-llama/Llama-3.1-75B", "meta-llama/Llama-3.1-70B"),
        ("Qwen/Qwem3-8B", "Qwen/Qwen3-8B"),
        ("mistralai/Mistral-Small-25B", "mistralai/Mistral-Small-24B-Instruct-2501"),
    ],
)
def test_a_near_name_is_of_the_same_family_and_size(name: str, first: str) -> None:
    with pytest.raises(ScenarioError) as error:
        load_model(name)
    assert suggested(str(error.value))[0] == first


FAMILIES = ("llama", "qwen", "mistral", "gemma", "deepseek", "glm", "kimi", "granite")


@given(
    family=st.sampled_from(FAMILIES),
    version=st.sampled_from(["", "-9", "9.7"]),
    billions=st.integers(1, 700),
    end=st.sampled_from(["", "-Instruct", "-FP8", "-vl"]),
)
def test_no_name_suggests_another_family_or_size(
    family: str, version: str, billions: int, end: str
) -> None:
    try:
        load_model(f"x/{family}{version}-{billions}B{end}")
        assert version == ""  # no version is taken for another
    except ScenarioError as error:
        for other in suggested(str(error)):
            assert family in words_of(other.rpartition("/")[2])
            assert 1 / 1.6 < load_model(other).total_params / 1e9 / billions < 1.75


@pytest.mark.parametrize("name", ["x/LFX9-8B", "x/DeepSQX-Preview", "x/Jumbo-70B"])
def test_families_that_are_like_no_other_get_no_suggestion(name: str) -> None:
    with pytest.raises(ScenarioError) as error:
        load_model(name)
    assert suggested(str(error.value)) == []


@given(st.text(max_size=80) | st.text("-_./:@q4bfp8 ", max_size=80))
def test_no_name_gives_a_traceback(name: str) -> None:
    for load in (load_model, load_gpu):
        with contextlib.suppress(ScenarioError):
            load(name)


def suggested(message: str) -> list[str]:
    found = re.search(r"did you mean (.*?)\?", message)
    return found[1].split(", ") if found else []


def test_most_names_of_public_commands_are_known() -> None:
    names = [line for line in NAMES.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    assert len(names) > 400
    known = 0
    for name in names:
        try:
            load_model(name)
        except ScenarioError:
            continue
        known += 1
    print(f"\n{known} of {len(names)} names of public commands are known")
    assert known > 0.8 * len(names)


def test_a_checkpoint_runs_on_devices_without_its_unit() -> None:
    served = quantize(load_model("Qwen/Qwen3-32B-FP8"), load_gpu("RTX-3090"))
    assert served.model.precision.attention == "w8a16"
    assert "no fp8 unit: the checkpoint's fp8_block is 8-bit weights alone" in served.notes[0]
    fp4 = quantize(load_model("nvidia/DeepSeek-R1-FP4"), load_gpu("H100"))
    assert fp4.model.precision.experts == "nvfp4_w4a16"
    assert fp4.model.precision.attention == "bfloat16"
    assert len([note for note in fp4.notes if "no fp4 unit" in note]) == 1


def test_the_form_in_a_name() -> None:
    assert form_in_name("Qwen/Qwen3-32B-FP8") == "fp8_block"
    assert form_in_name("RedHatAI/Qwen3-32B-FP8-dynamic") == "fp8"
    assert form_in_name("Qwen/Qwen3-32B") is None
    assert "Qwen/Qwen3-32B" in checkpoints()
