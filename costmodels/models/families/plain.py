"""Decoders with grouped-query attention and dense FFNs: Llama, Mistral, Qwen, OPT, BLOOM, Falcon,
and Gemma 2 to 4, with sliding windows, four norms per layer and tied tables."""

from __future__ import annotations

from dataclasses import replace

from costmodels.fields import Fields
from costmodels.models.families.decoder import Decoder, dense, gqa, grouped, moe, windowed, windows
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.layers.shared_kv import SharedKv


def read_llama(fields: Fields) -> Decoder:
    """Read llama, mistral, qwen2, qwen3, which differ in biases, QK-norms and the use of a
    window."""
    model_type = str(fields.first("model_type"))
    attention_bias = fields.flag("attention_bias", default=model_type == "qwen2")
    attention = gqa(
        fields,
        qkv_bias=attention_bias,
        # Qwen2 has its bias only on q, k and v; Llama's attention_bias covers o as well.
        out_bias=attention_bias and model_type != "qwen2",
        qk_norm=model_type.startswith("qwen3"),
    )
    ffn = dense(fields, bias=fields.flag("mlp_bias", default=False))
    layers = ((windowed(attention, window), ffn) for window in text_windows(fields))
    return Decoder(layers=grouped(layers))


def text_windows(fields: Fields) -> list[int | None]:
    """Return the windows of Llama-like files.

    Qwen files carry a window that they may not use, and that the first ``max_window_layers`` never
    use; in Mistral files a window is always in use.
    """
    if not str(fields.first("model_type")).startswith("qwen"):
        return windows(fields, lambda layer: True)
    first = fields.optional_count("max_window_layers")
    used = fields.flag("use_sliding_window", default=False)
    return windows(fields, lambda layer: used and layer >= first)


def read_opt(fields: Fields) -> Decoder:
    """Read OPT: MHA, two-matrix FFN, LayerNorm, learned positions whose table starts at row 2."""
    hidden = fields.count("hidden_size")
    projected = fields.count("word_embed_proj_dim", default=hidden) != hidden
    if projected or not fields.flag("do_layer_norm_before", default=True):
        raise fields.error(
            "word_embed_proj_dim unlike hidden_size, or do_layer_norm_before false (OPT-350M), "
            "is not supported"
        )
    bias = fields.flag("enable_bias", default=True)
    layer = (
        gqa(fields, qkv_bias=bias, out_bias=bias),
        dense(fields, "ffn_dim", gated=False, bias=bias),
    )
    return Decoder(
        layers=grouped([layer] * fields.count("num_hidden_layers")),
        norm="layer",
        tied=True,
        position_rows=fields.count("max_position_embeddings") + 2,
    )


def read_bloom(fields: Fields) -> Decoder:
    """Read BLOOM: MHA with ALiBi, a two-matrix FFN four times as wide, a norm after the
    embedding."""
    hidden = fields.count("hidden_size")
    attention = gqa(fields, qkv_bias=True, out_bias=True)
    ffn = dense(Fields({"width": 4 * hidden}, fields.where), "width", gated=False, bias=True)
    layers = fields.count("num_hidden_layers")
    return Decoder(
        layers=grouped([(attention, ffn)] * layers),
        norm="layer",
        tied=True,
        extra_params=2 * hidden,
    )


def read_falcon(fields: Fields) -> Decoder:
    """Read Falcon: attention and FFN side by side, so their outputs are summed over ranks once."""
    hidden, is_new = (
        fields.count("hidden_size"),
        fields.flag("new_decoder_architecture", default=False),
    )
    attention = gqa(fields)
    if not is_new and fields.flag("multi_query", default=True):
        attention = replace(attention, kv_heads=1)
    ffn = dense(
        Fields({"width": fields.count("ffn_hidden_size", default=4 * hidden)}, fields.where),
        "width",
        gated=False,
    )
    norms = 2 if is_new else 1
    layers = [(attention, ffn)] * fields.count("num_hidden_layers")
    return Decoder(layers=grouped(layers, norms=norms, all_reduces=1), norm="layer", tied=True)


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
    is_wide = fields.flag("use_double_wide_mlp", default=False)
    shared_ffn = dense(Fields({"width": 2 * width}, fields.where), "width") if is_wide else ffn
    layers: list[tuple[Mixer, Ffn]] = []
    for layer, window in enumerate(windows(fields, lambda layer: (layer + 1) % 6 != 0)):
        attention = local if window else full
        if layer >= first_shared:
            layers.append((SharedKv(gqa=attention, window=window), shared_ffn))
        else:
            layers.append((windowed(attention, window), ffn))
    # Every layer has embeddings of its own, and the gates and projections that add them.
    extra = fields.optional_count("hidden_size_per_layer_input")
    vocab = fields.optional_count("vocab_size_per_layer_input", default=fields.count("vocab_size"))
    extra_params = count * extra * (vocab + 3 * hidden)
    return Decoder(layers=grouped(layers, norms=4), tied=True, extra_params=extra_params)
