"""Products with int4 weights: how they are split and widened, and their compilation for an H200.

Their results in Triton's interpreter are among those of `test_measure_moe`.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.measure.kernels import w4a16
from tests.calibrate.measure.triton_launches import fits, launches_of

CASES = list(w4a16.cases(False, "cuda"))


def test_the_grid_covers_what_engines_run() -> None:
    assert len({case.key for case in CASES}) == len(CASES)
    matrices = {(case.shape["n"], case.shape["k"]) for case in CASES}
    # qkv, o, gate_up and down of Llama-3.1-8B, and of a quarter of 70B.
    assert matrices == {
        *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)),
        *((2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)),
    }
    assert {case.shape["m"] for case in CASES} >= {1, 16, 64, 256, 1024, 4096}


@given(
    st.integers(1, 8192),
    st.integers(1, 256).map(lambda n: 128 * n),
    st.integers(1, 256).map(lambda k: 128 * k),
)
def test_splits_share_all_groups(m: int, n: int, k: int) -> None:
    cut = w4a16.tiling(m, n, k)
    groups = k // 128
    assert (cut.splits - 1) * cut.groups_per_split < groups <= cut.splits * cut.groups_per_split
    assert cut.splits == 1 or cut.groups_per_split >= 4
    assert cut.block_m >= min(m, 128)


def test_few_rows_keep_an_h200_busy() -> None:
    """At least nine in ten multiprocessors have a program."""
    for case in CASES:
        m, n, k = (int(case.shape[name]) for name in "mnk")
        if m <= 64:
            cut = w4a16.tiling(m, n, k)
            assert n // 128 * cut.splits >= 0.9 * 132


def bfloat16(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])


def run(code: str, word: int) -> dict[str, tuple[float, float]]:
    """What the assembly that widens numbers writes: two bfloat16 a result register."""
    registers: dict[str, int] = {"$4": word}
    written: dict[str, tuple[float, float]] = {}

    def value(name: str) -> int:
        return registers[name] if name in registers else int(name, 0)

    for line in (each.strip().rstrip(";") for each in code.strip().strip("{}").splitlines()):
        operation, _, rest = line.partition(" ")
        names = [name.strip() for name in rest.split(",")]
        if operation == "mov.b32":
            registers[names[0]] = value(names[1])
        elif operation == "shr.u32":
            registers[names[0]] = value(names[1]) >> value(names[2])
        elif operation == "lop3.b32":
            assert names[4] == "0xea", "the table of (a & b) | c"
            registers[names[0]] = (value(names[1]) & value(names[2])) | value(names[3])
        elif operation == "sub.rn.bf16x2":
            left, right = value(names[1]), value(names[2])
            low = bfloat16(left & 0xFFFF) - bfloat16(right & 0xFFFF)
            written[names[0]] = low, bfloat16(left >> 16) - bfloat16(right >> 16)
        else:
            assert operation in ("", ".reg"), operation
    return written


@pytest.mark.slow
@given(st.lists(st.integers(0, 15), min_size=8, max_size=8))
def test_assembly_widens_two_words_of_four_numbers(numbers: list[int]) -> None:
    pytest.importorskip("triton")
    from calibrate.measure.kernels.w4a16_triton import WIDEN

    first, second = numbers[:4], numbers[4:]
    word = sum(n << 4 * at for at, n in enumerate(first))
    word |= sum(n << 16 + 4 * at for at, n in enumerate(second))
    expected = {f"${at}": (first[at] - 8.0, second[at] - 8.0) for at in range(4)}
    assert run(WIDEN.value, word) == expected


@pytest.mark.slow
def test_kernels_compile_for_an_h200() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    generator = torch.Generator().manual_seed(1)
    seen = set()
    for m, n, k in ((1, 512, 1024), (1, 128, 128), (32, 128, 128), (64, 128, 128), (128, 128, 128)):
        product = w4a16.make_product(m, n, k, torch.bfloat16, "cpu", generator)
        for launch in launches_of(product.launch):
            kernel = launch.compiled()
            assert fits(kernel), (launch.arguments, kernel.spill_bytes, kernel.shared_bytes)
            seen.add((launch.name, launch.arguments.get("block_m"), launch.arguments["out"]))
            if launch.name == "w4a16_matmul":
                assert kernel.tensor_core_instructions == {"wgmma"}
                assert "sub.rn.bf16x2" in kernel.ptx
    matmul = "w4a16_matmul"
    assert seen == {
        *((matmul, 16, "*fp32"), ("sum_splits", None, "*bf16")),
        *((matmul, rows, "*bf16") for rows in (16, 32, 64, 128)),
    }
