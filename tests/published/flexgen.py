"""B19: FlexGen's table on a T4 with 208 GB of DRAM and an SSD, 512 in and 32 out (2303.06865).

Placements and batches are those of its benchmark scripts, and the order of transfers and kernels is
that of its source. The rates of the machine are from the authors' cost model
(experimental/cost_model.py, "aligned on google cloud T4", which they fitted to runs of their own);
those of the disk and the device memory are typical of such parts. No constant is fitted to the
table here.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from costmodels.models.catalog import load_model
from tests.published.models.offload import Machine, Placement, Shares, offloaded_tokens_per_s
from tests.published.rows import Row, Section, met

_GIB = 1 << 30
T4 = Machine(
    device_flop_per_s=21.24e12,  # mm_flops_p: GEMMs of prompts
    device_bytes_per_s=0.8 * 320e9,
    to_device_bytes_per_s=12.89 * _GIB,  # ctog_bdw
    from_device_bytes_per_s=12.89 * _GIB,
    disk_read_bytes_per_s=2e9,
    disk_write_bytes_per_s=1e9,
    host_attention_bytes_per_s=12.3e9,  # cpu_flops: 0.0123 TFLOP/s, one a byte of fp16
)
ON_DEVICE, ON_HOST, ON_DISK = Shares(1.0, 0.0), Shares(0.0, 1.0), Shares(0.0, 0.0)
# Group quantisation: 4 bits, and a scale and minimum in fp16 for 64 elements.
_BITS = 4 + 32 / 64
# Its decompress, kernel by kernel: shift or mask to a temporary (1 byte an element, read and
# written), for both halves; that read, and stored to fp16 with a stride, which touches every sector
# for each half (1 + 4); divide in place (4), add in place (4).
_UNPACK = 15.0
# Its compress: least and largest (4), less the least (4), scaled, clamped and rounded in place
# (12), to 8 bits (3), shifted and joined (2.5).
_PACK = 25.5
# Its mha_gen: keys and values are laid out anew in fp16 for two batched products.
_COPIES = 4.0
# Its mha: scores in fp16 written, masked, softened and read.
_SCORES = 12.0


def _flexgen(**placement: Any) -> Placement:
    """A placement with FlexGen's kernels and waits."""
    waits = placement.pop("overlap", True)
    return Placement(
        unpack_bytes=_UNPACK,
        pack_bytes=_PACK,
        state_copy_bytes=_COPIES,
        score_bytes=_SCORES,
        overlap=waits,
        waits_each_batch=waits,
        **placement,
    )


CASES: dict[str, tuple[str, Placement, float]] = {
    "FlexGen OPT-6.7B": (
        "opt-6.7b",
        _flexgen(weights=ON_DEVICE, state=ON_DEVICE, batch=2, overlap=False),
        25.26,
    ),
    "FlexGen OPT-30B": (
        "opt-30b",
        _flexgen(weights=Shares(0.2, 0.8), state=ON_HOST, batch=48, batches=3, host_attention=True),
        7.32,
    ),
    "FlexGen OPT-175B": (
        "opt-175b",
        _flexgen(weights=Shares(0.0, 0.5), state=ON_DISK, batch=32, batches=8, host_attention=True),
        0.69,
    ),
    "FlexGen compressed OPT-6.7B": (
        "opt-6.7b",
        _flexgen(
            weights=ON_DEVICE,
            state=ON_DEVICE,
            batch=72,
            weight_bits=_BITS,
            state_bits=_BITS,
            overlap=False,
        ),
        29.12,
    ),
    "FlexGen compressed OPT-30B": (
        "opt-30b",
        _flexgen(weights=ON_HOST, state=ON_HOST, batch=64, batches=8, state_bits=_BITS),
        8.38,
    ),
    "FlexGen compressed OPT-175B": (
        "opt-175b",
        _flexgen(
            weights=ON_HOST,
            state=ON_HOST,
            batch=48,
            batches=3,
            weight_bits=_BITS,
            state_bits=_BITS,
        ),
        1.12,
    ),
    "ZeRO-Inference OPT-6.7B": (
        "opt-6.7b",
        Placement(weights=ON_HOST, state=ON_DEVICE, batch=16),
        9.28,
    ),
    "ZeRO-Inference OPT-30B": (
        "opt-30b",
        Placement(weights=ON_HOST, state=ON_DEVICE, batch=4),
        0.60,
    ),
    "ZeRO-Inference OPT-175B": (
        "opt-175b",
        Placement(weights=ON_DISK, state=ON_DEVICE, batch=1),
        0.01,
    ),
}


def raw_rows() -> list[Row]:
    """The table from what the machine reaches; published figures of 0.01 have one digit: no bar."""
    rows = []
    for what, (name, placement, published) in CASES.items():
        ours = offloaded_tokens_per_s(load_model(name), T4, placement, 512, 32)
        rows.append(Row(what, ours, published, "tok/s", 0.40 if published > 0.01 else None))
    return rows


def rows_with_one_constant() -> list[Row]:
    """Each row times one constant of the machine: the median ratio of the *other* rows."""
    barred = [row for row in raw_rows() if row.bar is not None]
    found = []
    for row in barred:
        others = [other.published / other.ours for other in barred if other is not row]
        found.append(row._replace(ours=row.ours * median(others)))
    return found


def sections() -> list[Section]:
    """Without any constant, and with one of the machine that the row itself did not set."""
    raw, scaled = raw_rows(), rows_with_one_constant()
    constant = median(row.published / row.ours for row in raw if row.bar is not None)
    conditions = "512 in, 32 out; generated tokens over prefill and decode; batches and placements "
    return [
        Section(
            "B19 FlexGen and ZeRO-Inference on a T4, no constant of ours",
            conditions + "of the authors' scripts; GEMM rate, host link and host attention of the "
            "authors' cost model",
            raw,
            (
                f"within 40%: {met(raw)}",
                "compressed on the host: the authors' copies from memory that is not pinned go "
                "through a pinned one, made by the thread that launches kernels; how fast their "
                "host copies is not published, and not priced",
                "ZeRO-Inference: both rows are those of a host link at 8 to 9 GB/s; what ZeRO-3 "
                "spends to gather each parameter is not published",
            ),
        ),
        Section(
            "B19 the same with one efficiency constant of the machine",
            "each row scaled by the median ratio of the other rows (leave one out)",
            scaled,
            (
                f"within 40%: {met(scaled)}",
                f"the constant from all rows: {constant:.2f}",
            ),
        ),
    ]
