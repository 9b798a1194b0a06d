"""Gemma 2, 3 and 4: sliding-window layers between full ones, four norms per layer, tied tables."""

from __future__ import annotations

from dataclasses import replace

from costmodels.fields import Fields
from costmodels.models.families.decoder import Decoder, dense, gqa, grouped, moe, windowed, windows
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.layers.shared_kv import SharedKv


def read_gemma(fields: Fields) -> Decoder:
    """Read gemma2 (1 sliding : 1 full, sliding first) and gemma3 (5 : 1, with QK-norms)."""
    is_third = str(fields.first("model_type")).startswith("gemma3")
    pattern = fields.count("sliding_window_pattern", default=6 if is_third else 2)
    attention, ffn = gqa(fields, qk_norm=is_third), dense(fields)
    found = windows(fields, lambda layer: (layer + 1) % pattern != 0)
    layers = ((windowed(attention, window), ffn) for window in found)
    return Decoder(layers=grouped(layers, norms=4), tied=True)


def read_gemma4(fields: Fields) -> Decoder:
    """Read gemma4: full layers have heads of their own; the last layers share keys and values.

    Experts, if enabled, run beside the dense FFN, which is then a shared expert.
    """
    count, hidden = fields.count("num_hidden_layers"), fields.count("hidden_size")
    local = gqa(fields, qk_norm=True)
    full = replace(
        local,
        head_dim=fields.count("global_head_dim", default=local.head_dim),
        kv_heads=fields.count("num_global_key_value_heads", default=local.kv_heads),
        k_eq_v=fields.flag("attention_k_eq_v", default=False),
    )
    width = fields.count("intermediate_size")
    ffn: Ffn = dense(fields)
    if fields.flag("enable_moe_block", default=False):
        ffn = moe(fields, shared_width=width)
    first_shared = count - fields.optional_count("num_kv_shared_layers")
    layers: list[tuple[Mixer, Ffn]] = []
    for layer, window in enumerate(windows(fields, lambda layer: (layer + 1) % 6 != 0)):
        attention = local if window else full
        if layer >= first_shared:
            layers.append((SharedKv(gqa=attention, window=window), ffn))
        else:
            layers.append((windowed(attention, window), ffn))
    # Every layer has embeddings of its own, and the gates and projections that add them.
    extra = fields.optional_count("hidden_size_per_layer_input")
    vocab = fields.optional_count("vocab_size_per_layer_input", default=fields.count("vocab_size"))
    extra_params = count * extra * (vocab + 3 * hidden)
    return Decoder(layers=grouped(layers, norms=4), tied=True, extra_params=extra_params)
