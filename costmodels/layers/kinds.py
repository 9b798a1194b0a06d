"""All kinds of layers by name. A new architecture is a file with its dataclass, and a line here."""

from __future__ import annotations

from costmodels.layers.block_sparse import BlockSparse
from costmodels.layers.compressed import CompressedMqa
from costmodels.layers.dense import Dense
from costmodels.layers.dsa import Dsa
from costmodels.layers.evicting import Evicting
from costmodels.layers.gdn import Gdn
from costmodels.layers.gqa import Gqa
from costmodels.layers.kda import Kda
from costmodels.layers.lightning import Lightning
from costmodels.layers.mamba2 import Mamba2
from costmodels.layers.matrix import Matrix
from costmodels.layers.mla import Mla
from costmodels.layers.moe import Moe
from costmodels.layers.parts import Ffn, Mixer
from costmodels.layers.prompt_budget import PromptBudget
from costmodels.layers.shared_kv import SharedKv, YocoMemory
from costmodels.layers.sliding import SlidingWindow

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
    "mamba2": Mamba2,
}
FFNS: dict[str, type[Ffn]] = {"dense": Dense, "moe": Moe, "matrix": Matrix}
