"""One layer of each attention kind, in published sizes."""

from __future__ import annotations

from dataclasses import replace

from costmodels.models.layers.compressed import CompressedMqa
from costmodels.models.layers.delta import Gdn, Kda
from costmodels.models.layers.dsa import Dsa
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.lightning import Lightning
from costmodels.models.layers.mamba2 import Mamba2
from costmodels.models.layers.mla import Mla
from costmodels.models.layers.parts import Mixer

GQA = Gqa(heads=32, kv_heads=8, head_dim=128)


MLA = Mla(heads=128, kv_lora=512, nope=128, rope=64, v_dim=128, q_lora=1536)


DSA = Dsa(mla=MLA, topk=2048, index_heads=64, index_dim=128)


V4 = CompressedMqa(
    heads=64, head_dim=512, rope=64, q_lora=1024, o_lora=1024, o_groups=8, window=128
)


CSA = replace(V4, stride=4, overlap=True, index_heads=64, index_dim=128, topk=512)


HCA = replace(V4, stride=128)


LINEAR: list[Mixer] = [
    Kda(heads=96, head_dim=128),
    Gdn(k_heads=16, v_heads=32, k_dim=128, v_dim=128),
    Lightning(heads=64, head_dim=128),
    Mamba2(heads=128, head_dim=64, state_size=128, groups=8),
]
