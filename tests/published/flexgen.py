"""B19: FlexGen's table on a T4 with 208 GB of DRAM and an SSD, 512 in and 32 out (2303.06865).

Placements and batches are those of its benchmark scripts; bandwidths are what such parts reach, and
nothing is fitted to the table.
"""

from __future__ import annotations

from statistics import median

from costmodels.models import load_model
from costmodels.offload import Machine, Placement, Shares, offloaded_tokens_per_s
from tests.published.rows import Row, Section, met

T4 = Machine(
    device_flop_per_s=35e12,  # fp16 GEMMs reach 30 to 40 of 65 TFLOP/s
    device_bytes_per_s=0.8 * 320e9,
    to_device_bytes_per_s=12e9,  # PCIe 3 x16
    from_device_bytes_per_s=12e9,
    disk_read_bytes_per_s=2e9,
    disk_write_bytes_per_s=1e9,
    # FlexGen's experimental/cost_model.py: its host attends at 0.0123 TFLOP/s, one a byte of fp16.
    host_attention_bytes_per_s=12.3e9,
)
ON_DEVICE, ON_HOST, ON_DISK = Shares(1.0, 0.0), Shares(0.0, 1.0), Shares(0.0, 0.0)
# Group quantisation: 4 bits, and a scale and minimum in fp16 for 64 elements.
_BITS = 4 + 32 / 64
# Its decompress, kernel by kernel: shift or mask to a temporary, store to fp16 with a stride, for
# both halves (5 bytes an element), divide in place (4), add in place (4).
_UNPACK = 13.0
CASES: dict[str, tuple[str, Placement, float]] = {
    "FlexGen OPT-6.7B": (
        "opt-6.7b",
        Placement(weights=ON_DEVICE, state=ON_DEVICE, batch=2, overlap=False),
        25.26,
    ),
    "FlexGen OPT-30B": (
        "opt-30b",
        Placement(
            weights=Shares(0.2, 0.8), state=ON_HOST, batch=48, batches=3, host_attention=True
        ),
        7.32,
    ),
    "FlexGen OPT-175B": (
        "opt-175b",
        Placement(
            weights=Shares(0.0, 0.5), state=ON_DISK, batch=32, batches=8, host_attention=True
        ),
        0.69,
    ),
    "FlexGen compressed OPT-6.7B": (
        "opt-6.7b",
        Placement(
            weights=ON_DEVICE,
            state=ON_DEVICE,
            batch=72,
            weight_bits=_BITS,
            state_bits=_BITS,
            unpack_bytes=_UNPACK,
            overlap=False,
        ),
        29.12,
    ),
    "FlexGen compressed OPT-30B": (
        "opt-30b",
        Placement(
            weights=ON_HOST,
            state=ON_HOST,
            batch=64,
            batches=8,
            state_bits=_BITS,
            unpack_bytes=_UNPACK,
        ),
        8.38,
    ),
    "FlexGen compressed OPT-175B": (
        "opt-175b",
        Placement(
            weights=ON_HOST,
            state=ON_HOST,
            batch=48,
            batches=3,
            weight_bits=_BITS,
            state_bits=_BITS,
            unpack_bytes=_UNPACK,
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
    """The table from what the parts reach; published figures of 0.01 have one digit: no bar."""
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
            "B19 FlexGen and ZeRO-Inference on a T4, no constant",
            conditions + "of the authors' scripts",
            raw,
            (f"within 40%: {met(raw)}",),
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
