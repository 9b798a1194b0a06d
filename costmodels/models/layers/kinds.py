"""All kinds of layers by name. A new architecture needs a file with its dataclass, and a line
here."""

from __future__ import annotations

from costmodels.models.layers.block_sparse import BlockSparse
from costmodels.models.layers.bounded import Evicting, PromptBudget, SlidingWindow
from costmodels.models.layers.compressed import CompressedMqa
from costmodels.models.layers.delta import Gdn, Kda
from costmodels.models.layers.dense import Dense, Matrix
from costmodels.models.layers.dsa import Dsa
from costmodels.models.layers.gqa import Gqa
from costmodels.models.layers.lightning import Lightning
from costmodels.models.layers.mamba1 import Mamba1
from costmodels.models.layers.mamba2 import Mamba2
from costmodels.models.layers.mla import Mla
from costmodels.models.layers.moe import Moe
from costmodels.models.layers.parts import Ffn, Mixer
from costmodels.models.layers.shared_kv import SharedKv, YocoMemory
from costmodels.models.layers.short_conv import ShortConv

MIXERS: dict[str, type[Mixer]] = {
    "gqa": Gqa,
    "sliding": SlidingWindow,
    "evicting": Evicting,
    "prompt_budget": PromptBudget,
    "shared_kv": SharedKv,
    "yoco_memory": YocoMemory,
    "block_sparse": BlockSparse,
    "mla": Mla,
    "dsa": Dsa,
    "compressed": CompressedMqa,
    "kda": Kda,
    "gdn": Gdn,
    "lightning": Lightning,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "short_conv": ShortConv,
}
FFNS: dict[str, type[Ffn]] = {"dense": Dense, "moe": Moe, "matrix": Matrix}
