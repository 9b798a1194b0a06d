"""Reads layers with a state of fixed size, in every spelling of their fields."""

from __future__ import annotations

from costmodels.fields import Fields
from costmodels.models.layers.delta import Gdn, Kda
from costmodels.models.layers.mamba1 import Mamba1
from costmodels.models.layers.mamba2 import Mamba2
from costmodels.models.layers.parts import Mixer


def linear_mixer(fields: Fields) -> Mixer:
    """Return the linear layer that the fields describe. Raises `ScenarioError` if none is."""
    if fields.first("linear_num_value_heads"):
        return gdn(fields)
    if fields.first("linear_num_heads", "linear_attn_config"):
        return kda(fields)
    if fields.first("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"):
        return mamba2(fields)
    if fields.first("mamba_d_state", "state_size") and fields.first("num_heads", "n_groups"):
        return mamba2(fields)
    if fields.first("mamba_d_state", "state_size"):
        return mamba1(fields)
    raise fields.error(
        "layer_types has linear layers, but no fields of Mamba (mamba_d_state), Gated DeltaNet "
        "(linear_num_value_heads) or Kimi delta attention (linear_attn_config)"
    )


def gdn(fields: Fields) -> Gdn:
    """Read Gated DeltaNet with its heads and convolution."""
    return Gdn(
        k_heads=fields.count("linear_num_key_heads"),
        v_heads=fields.count("linear_num_value_heads"),
        k_dim=fields.count("linear_key_head_dim"),
        v_dim=fields.count("linear_value_head_dim"),
        conv=fields.count("linear_conv_kernel_dim", default=4),
    )


def kda(fields: Fields) -> Kda:
    """Read Kimi delta attention, of which newer files have ``linear_attn_config``."""
    if fields.first("linear_attn_config") is None:
        return Kda(
            heads=fields.count("linear_num_heads"),
            head_dim=fields.count("linear_head_dim"),
            conv=fields.count("linear_conv_kernel_dim", default=4),
            full_rank_gate=fields.flag("use_full_rank_gate", default=False),
        )
    part = fields.part("linear_attn_config")
    return Kda(
        heads=part.count("num_heads"),
        head_dim=part.count("head_dim"),
        conv=part.count("short_conv_kernel_size", default=4),
        full_rank_gate=part.flag("use_full_rank_gate", default=False),
    )


def mamba2(fields: Fields) -> Mamba2:
    """Read Mamba-2 as Nemotron-H, Bamba, Granite 4, Falcon-H1 and Mamba-2 itself spell it."""
    heads = fields.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    inner = fields.optional_count("mamba_d_ssm")
    if not inner:
        expand = fields.count("mamba_expand", "expand", default=2)
        inner = expand * fields.count("hidden_size")
    return Mamba2(
        heads=heads,
        head_dim=fields.count(
            *("mamba_head_dim", "mamba_d_head", "mamba_headdim"), default=inner // heads
        ),
        state_size=fields.count("ssm_state_size", "mamba_d_state", "state_size"),
        groups=fields.count("n_groups", "mamba_n_groups", "mamba_ngroups", default=1),
        conv=fields.count("conv_kernel", "mamba_d_conv", default=4),
    )


def mamba1(fields: Fields) -> Mamba1:
    """Read Mamba as Jamba and Mamba itself spell it."""
    hidden = fields.count("hidden_size")
    rank = fields.first("mamba_dt_rank", "time_step_rank")
    return Mamba1(
        size=fields.count("mamba_expand", "expand", default=2) * hidden,
        state_size=fields.count("mamba_d_state", "state_size"),
        rank=rank if isinstance(rank, int) else -(-hidden // 16),
        conv=fields.count("mamba_d_conv", "conv_kernel", default=4),
    )
