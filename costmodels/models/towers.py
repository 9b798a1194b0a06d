"""Towers beside a language model, which turn images and sounds into tokens of its prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from costmodels.datafile import read_data
from costmodels.fields import Fields

_FILE = "models/towers.yaml"
_PARTS = {
    "vision": ("vision_config", "vit_config", "visual", "vision_tower_config"),
    "audio": ("audio_config", "audio_encoder_config", "sound_config"),
}
_CHANNELS = 3
_HEAD_DIM = 64
"""Features of a head where a tower does not say its heads."""
# A thinker of an omni model nests its towers beside its text model.
_INNER = ("thinker_config",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """An encoder of attention and FFNs over patches, and the projector to the language model."""

    modality: str
    layers: int
    hidden: int
    heads: int
    head_dim: int
    width: int
    gated: bool
    projector: int
    """Parameters from the last layer's output to tokens of the language model."""
    inputs: int
    """Elements of a patch of pixels, or of a frame of sound."""
    patch: int = 0
    """Pixels on a side of a patch; 0: it has none."""
    patches_per_token: int = 1
    rotary: bool = False
    """Whether positions are rotary, not learned."""
    most_patches: int = 0
    """Patches of the largest image that it takes whole; 0: the config does not say."""

    @property
    def layer_params(self) -> int:
        """Parameters of one layer's matrices."""
        attention = 4 * self.hidden * self.heads * self.head_dim
        return attention + (3 if self.gated else 2) * self.hidden * self.width

    @property
    def params(self) -> int:
        """Number of all parameters: layers, the first projection, positions, the projector."""
        positions = 0 if self.rotary else self.most_patches * self.hidden
        first = self.inputs * self.hidden
        return self.layers * self.layer_params + first + positions + self.projector

    def flops(self, patches: int) -> float:
        """Return the FLOPs of one image or sound of so many patches, which all see each other."""
        linear = 2.0 * (self.layers * self.layer_params + self.inputs * self.hidden)
        projected = 2.0 * self.projector / self.patches_per_token
        return patches * (linear + projected + 4.0 * self.layers * self.hidden * patches)

    def tokens(self, width: int, height: int) -> int:
        """Return the prompt tokens of an image of so many pixels. Requires patches of pixels."""
        side = self.patch * math.isqrt(self.patches_per_token)
        return max(1, round(width / side)) * max(1, round(height / side))

    def sharded(self, ranks: int) -> Tower:
        """Return what one of ``ranks`` holds: heads and widths are split where they divide."""
        if self.heads % ranks or self.width % ranks:
            return self
        return replace(
            self,
            width=self.width // ranks,
            heads=self.heads // ranks,
            projector=self.projector // ranks,
        )


class Found(NamedTuple):
    """The towers of a config."""

    towers: tuple[Tower, ...]
    notes: tuple[str, ...] = ()


def read_towers(config: Mapping[str, Any], where: str, text_hidden: int) -> Found:
    """Return the towers whose parts a multimodal config has, before a model of ``text_hidden``
    features, and a note on those whose sizes it does not say."""
    for key in _INNER:
        inner = config.get(key)
        if isinstance(inner, Mapping):
            config = {**config, **inner}
    towers, notes = [], list[str]()
    for modality, keys in _PARTS.items():
        for key in keys:
            part = config.get(key)
            if not isinstance(part, Mapping) or not part:
                continue
            tower = _tower(modality, Fields(part, where, f"{key}."), config, text_hidden)
            if tower is None:
                notes.append(
                    f"{key} does not say its sizes (hidden_size, num_hidden_layers): the "
                    f"{modality} tower's weights and time are left out"
                )
            else:
                towers.append(tower)
            break
    return Found(tuple(towers), tuple(notes))


def _tower(
    modality: str, part: Fields, config: Mapping[str, Any], text_hidden: int
) -> Tower | None:
    row = _row(modality, part, config)
    known = {k: v for k, v in row.items() if k not in ("projector", "width_field")}
    fields = replace(part, values={**known, **_renamed(part.values, row)})
    needed = ("hidden_size", "num_hidden_layers")
    if not all(isinstance(fields.first(key), int) for key in needed):
        return None
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads", default=max(1, hidden // _HEAD_DIM))
    width = fields.first("intermediate_size", "mlp_dim")
    if not isinstance(width, int):
        width = int(hidden * float(fields.first("mlp_ratio") or 4))
    patch = _side(fields.first("patch_size"))
    merge = _side(
        fields.first("spatial_merge_size", "merge_kernel_size", "merge_size", "merge")
        or config.get("spatial_merge_size")
        or config.get("scale_factor")
        or 1
    )
    image = _side(fields.first("image_size") or 0)
    out = fields.first("out_hidden_size") or text_hidden
    frames = fields.first("temporal_patch_size") or 1
    inputs = _CHANNELS * patch**2 * int(frames)
    if modality == "audio":  # two convolutions over three frames each
        inputs = 3 * (int(fields.first("num_mel_bins") or 128) + hidden)
    whole = read_data(_FILE)["projectors"].get(config.get("model_type"))
    kind = str(whole or row.get("projector", "mlp"))
    projector = _projector(kind, hidden, merge**2, int(out), width)
    deeper = fields.items("deepstack_visual_indexes")
    block_width = int(out) if kind == "gated" else width
    return Tower(
        modality=modality,
        layers=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        head_dim=hidden // heads,
        width=block_width,
        gated=bool(row.get("gated", str(fields.first("hidden_act")) in ("silu", "swish"))),
        rotary=bool(row.get("rotary", False)),
        projector=projector * (1 + len(deeper)),
        inputs=inputs,
        patch=patch,
        patches_per_token=merge**2,
        most_patches=(image // patch) ** 2 if patch and image else 0,
    )


def _row(modality: str, part: Fields, config: Mapping[str, Any]) -> Mapping[str, Any]:
    rows: Mapping[str, Any] = read_data(_FILE)[modality]
    for name in (str(part.first("model_type")), str(config.get("model_type"))):
        if name in rows:
            found: Mapping[str, Any] = rows[name]
            return found
    return {}


_NAMES = {
    "depth": "num_hidden_layers",
    "layers": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "encoder_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "attention_heads": "num_attention_heads",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
    "d_model": "hidden_size",
    "width": "hidden_size",
    "vt_hidden_size": "hidden_size",
    "vt_num_hidden_layers": "num_hidden_layers",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_intermediate_size": "intermediate_size",
}


def _renamed(values: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tower's fields in common names. Qwen2-VL's hidden_size is the language model's."""
    found = {name: value for name, value in values.items() if value is not None}
    found |= {new: found[old] for old, new in _NAMES.items() if old in found}
    own = row.get("width_field")
    if own in found:
        found["out_hidden_size"] = found.get("hidden_size")
        found["hidden_size"] = found[own]
    return found


def _projector(kind: str, hidden: int, patches: int, out: int, width: int) -> int:
    """Return the parameters of the projector of a kind in ``towers.yaml``."""
    joined = hidden * patches
    if kind == "merger":
        return joined**2 + joined * out
    if kind == "linear":
        return joined * out
    if kind == "gated":
        return joined * out + out**2 + 3 * out * width
    if kind == "shuffled":  # Llama 4's adapter of two matrices, then one to the language model
        return joined * 4096 + 4096**2 + 4096 * out
    if kind == "merged":  # patches are joined to one of the tower's width before
        return hidden * joined + hidden * out + out**2
    return joined * out + out**2


def _side(value: Any) -> int:
    found = value[0] if isinstance(value, list) and value else value
    return found if isinstance(found, int) else 0
