"""The checkpoint behind a measured point, as a model that a scenario can name.

The package has the config.json, and where there is one hf_quant_config.json, of most of them; a
method of quantization stands for the others.
"""

from __future__ import annotations

import json
from importlib.resources.abc import Traversable
from pathlib import Path

from tests.silicon.points import SiliconPoint, model_config

_ID = {
    ("MiniMaxAI/MiniMax-M2.5", "fp4"): "nvidia/MiniMax-M2.5-NVFP4",
    ("Qwen/Qwen3.5-397B-A17B", "fp4"): "nvidia/Qwen3.5-397B-A17B-NVFP4",
    ("deepseek-ai/DeepSeek-R1", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("deepseek-ai/DeepSeek-V3", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("nvidia/DeepSeek-R1-NVFP4", "fp4"): "nvidia/DeepSeek-V3.1-NVFP4",
    ("moonshotai/Kimi-K2.5", "fp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("zhipuai/GLM-5", "fp4"): "nvidia/GLM-5-NVFP4",
    ("zhipuai/GLM-5", "fp8"): "zai-org/GLM-5-FP8",
    ("zhipuai/GLM-5", "bf16"): "zai-org/GLM-5-FP8",
    ("nvidia/DeepSeek-R1-NVFP4", "bf16"): "deepseek-ai/DeepSeek-R1",
    ("meta-llama/Llama-3.1-70B", "bf16"): "meta-llama/Meta-Llama-3.1-70B",
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "bf16"): "meta-llama/Meta-Llama-3.1-8B",
    ("nvidia/Qwen3-32B-NVFP4", "bf16"): "Qwen/Qwen3-32B",
    ("Qwen/Qwen3-32B", "fp8"): "Qwen/Qwen3-32B-FP8-Static-PerTensor",
    ("nvidia/Qwen3-32B-NVFP4", "fp4"): "Qwen/Qwen3-32B",
    ("meta-llama/Llama-3.1-70B", "fp4"): "meta-llama/Meta-Llama-3.1-70B",
    ("meta-llama/Llama-3.1-70B", "fp8"): "nvidia/Llama-3.1-70B-Instruct-FP8",
    ("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"): "meta-llama/Meta-Llama-3.1-8B",
    ("meta-llama/Llama-3.1-8B-Instruct", "fp8"): "meta-llama/Meta-Llama-3.1-8B",
    ("meta-llama/Llama-3.1-8B-Instruct", "bf16"): "meta-llama/Meta-Llama-3.1-8B",
}
"""Ids in the package by that of the row and its precision; others are under the row's id."""
_METHODS = {"fp8_block": "fp8_per_block", "fp8": "fp8", "nvfp4": "modelopt_fp4"}


_MXFP4_IN_MXFP8 = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "experts": {
            "weights": {"num_bits": 4, "type": "float", "group_size": 32},
            "input_activations": {"num_bits": 8, "type": "float", "group_size": 32},
        }
    },
    "ignore": ["model.layers.*.self_attn", "model.embed_tokens", "lm_head"],
}


def _is_in_mxfp8(point: SiliconPoint) -> bool:
    """InferenceX's scripts for gpt-oss on Blackwell ask for 8-bit activations: vLLM with
    VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8, TensorRT-LLM with its own experts."""
    return point.model == "openai/gpt-oss-120b" and point.gpu.startswith("B")


def checkpoint_id(point: SiliconPoint) -> str:
    """The id in the package that has the point's shapes."""
    return _ID.get((point.model, point.precision), point.model)


def model_in(point: SiliconPoint, folder: Path) -> tuple[str, str | None]:
    """Write the config of a point's checkpoint into ``folder``.

    Returns its path, and the method of quantization that its config does not state (None: none).
    """
    name = checkpoint_id(point)
    file = model_config(name)
    path = folder / "config.json"
    text = file.read_text(encoding="utf-8")
    if _is_in_mxfp8(point):
        text = json.dumps(json.loads(text) | {"quantization_config": _MXFP4_IN_MXFP8})
    path.write_text(text, encoding="utf-8")
    beside = _beside(file)
    if beside.is_file():
        stated = beside.read_text(encoding="utf-8")
        (folder / "hf_quant_config.json").write_text(stated, encoding="utf-8")
    if beside.is_file() or "quantization_config" in text or point.precision == "bf16":
        return str(path), None
    return str(path), _METHODS[point.gemm_mode or point.precision]


def _beside(file: Traversable) -> Path:
    path = Path(str(file))
    return path.with_name(path.name.replace("_config.json", "_hf_quant_config.json"))
