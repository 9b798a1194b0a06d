"""The reader of each ``model_type``. A new family needs a function, and a line here."""

from __future__ import annotations

from costmodels.models.families.decoder import Reader
from costmodels.models.families.experts import (
    read_glm4_moe,
    read_gpt_oss,
    read_llama4,
    read_minimax_m2,
    read_minimax_m3,
    read_mixtral,
    read_qwen_moe,
)
from costmodels.models.families.hybrid import (
    read_kimi,
    read_minimax,
    read_nemotron_h,
    read_qwen_next,
)
from costmodels.models.families.latent import read_deepseek, read_deepseek_ref, read_deepseek_v4
from costmodels.models.families.layer_list import read_layer_list
from costmodels.models.families.plain import (
    read_bloom,
    read_falcon,
    read_gemma,
    read_gemma4,
    read_llama,
    read_opt,
)

FAMILIES: dict[str, Reader] = {
    "bloom": read_bloom,
    "deepseek_ref": read_deepseek_ref,
    "deepseek_v2": read_deepseek,
    "deepseek_v3": read_deepseek,
    "deepseek_v32": read_deepseek,
    "deepseek_v4": read_deepseek_v4,
    "falcon": read_falcon,
    "gemma2": read_gemma,
    "gemma3": read_gemma,
    "gemma3_text": read_gemma,
    "gemma4": read_gemma4,
    "gemma4_text": read_gemma4,
    "glm4_moe": read_glm4_moe,
    "glm4_moe_lite": read_deepseek,
    "glm_moe_dsa": read_deepseek,
    "gpt_oss": read_gpt_oss,
    "kimi_k2": read_deepseek,
    "kimi_k3": read_kimi,
    "kimi_linear": read_kimi,
    "layers": read_layer_list,
    "llama": read_llama,
    "llama4_text": read_llama4,
    "minimax": read_minimax,
    "minimax_m1": read_minimax,
    "minimax_m2": read_minimax_m2,
    "minimax_m3": read_minimax_m3,
    "minimax_m3_vl": read_minimax_m3,
    "mistral": read_llama,
    "mixtral": read_mixtral,
    "nemotron_h": read_nemotron_h,
    "opt": read_opt,
    "qwen2": read_llama,
    "qwen2_moe": read_qwen_moe,
    "qwen3": read_llama,
    "qwen3_5": read_qwen_next,
    "qwen3_5_moe": read_qwen_next,
    "qwen3_5_moe_text": read_qwen_next,
    "qwen3_5_text": read_qwen_next,
    "qwen3_moe": read_qwen_moe,
    "qwen3_next": read_qwen_next,
    "qwen3_vl_moe_text": read_qwen_moe,
    "qwen3_vl_text": read_llama,
}
