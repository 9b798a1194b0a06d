"""Attention kernels of `calibrate.measure`: their grids, their splits, and their results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.measure.case import Case
from calibrate.measure.kernels import attention_decode, attention_prefill, mla_decode
from calibrate.measure.kernels.attention_inputs import Heads, causal_pairs
from calibrate.measure.kernels.split_plan import MAX_SPLITS, SMS, split_tiles
from tests.calibrate.measure.triton_compile import H200_SHARED_BYTES, Compiled, compile_for_h200
from tests.properties.checkout import module_output

MODULES = {
    "attention_decode": attention_decode,
    "attention_prefill": attention_prefill,
    "mla_decode": mla_decode,
}
Line = dict[str, Any]

sizes = st.integers(1, 2000)


@given(rows=sizes, tiles=sizes, resident=st.integers(1, 4), splits=st.none() | st.integers(1, 200))
def test_splits_cover_all_tiles_and_none_is_empty(
    rows: int, tiles: int, resident: int, splits: int | None
) -> None:
    cut = split_tiles(rows, tiles, resident=resident, splits=splits)
    assert (cut.splits - 1) * cut.tiles_per_split < tiles <= cut.splits * cut.tiles_per_split
    assert cut.splits <= (splits or MAX_SPLITS)


def test_one_long_sequence_is_split_until_it_fills_the_device_and_many_are_not() -> None:
    alone = split_tiles(8, 2048, resident=3)
    assert SMS * 2 <= 8 * alone.splits <= SMS * 3
    assert split_tiles(8 * 1024, 64, resident=3).splits == 1
    assert split_tiles(1, 2, resident=3).splits == 1


def test_work_is_not_split_where_joining_its_results_costs_more() -> None:
    assert split_tiles(64, 16, resident=2).splits == 4
    assert split_tiles(64, 16, resident=2, joined=8192 * 128).splits == 1
    assert split_tiles(64, 16, resident=2, fewest=8).splits == 2


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_a_grid_has_no_case_twice_and_starts_small(name: str, quick: bool, device: str) -> None:
    cases = list(MODULES[name].cases(quick, device))
    assert len({case.key for case in cases}) == len(cases) > 0
    checked_at: dict[Any, float] = {}
    for case in cases:
        flops, num_bytes = MODULES[name].work(case)
        assert min(flops, num_bytes) > 0
        checked_at.setdefault(case.variant, flops)
    # What a kernel in some formats is checked at before any of its shapes is timed.
    assert max(checked_at.values()) < 1e9


def test_work_counts_what_is_visible() -> None:
    heads = Heads(8, 2, 64, 100)
    shape: dict[str, int | str] = {**heads._asdict(), "seqs": 3, "context_tokens": 250}
    formats = {"activations": "bfloat16", "kv": "fp8"}
    case = Case(family="decode_attention", kernel="triton", formats=formats, shape=shape)
    flops, num_bytes = attention_decode.work(case)
    assert flops == 3 * 100 * 4 * 8 * 64
    assert num_bytes == 3 * (100 * 2 * 2 * 64 + 2 * 2 * 8 * 64)


@given(tokens=st.integers(0, 60), window=st.integers(0, 80))
def test_causal_pairs_are_counted(tokens: int, window: int) -> None:
    pairs = sum(
        1
        for query in range(tokens)
        for key in range(query + 1)
        if not window or query - key < window
    )
    assert causal_pairs(tokens, window) == pairs


def decode_lines() -> Iterator[Line]:
    formats = [("float16", "float16"), ("float32", "float32"), ("float16", "fp8")]
    heads = [(4, 4, 64, 0), (8, 2, 128, 0), (8, 1, 256, 0), (8, 1, 64, 100), (9, 3, 64, 0)]
    sequences = [(1, 1), (2, 65), (1, 333), (3, 64)]
    for place, head in enumerate(heads):
        for number, (seqs, context) in enumerate(sequences):
            activations, kv = formats[(place + number) % 3]
            shape = Heads(*head)._asdict() | {"seqs": seqs, "context_tokens": context}
            yield line("attention_decode", "decode_attention", activations, kv, shape)


def prefill_lines() -> Iterator[Line]:
    heads = [(2, 2, 64, 0), (8, 2, 128, 0), (8, 1, 64, 0), (4, 1, 64, 50), (2, 1, 256, 0)]
    prompts = [(1, 1, 0), (2, 17, 0), (1, 70, 33), (1, 3, 300), (2, 40, 129)]
    shapes = [(*head, *prompt) for head in heads for prompt in prompts]
    # Windows that are shorter and longer than tiles of either size, after prefixes that put their
    # first tile out of sight of later queries.
    windows = [(4, 1, 64, 20), (4, 1, 64, 128), (2, 1, 128, 100), (2, 1, 256, 50), (2, 1, 256, 96)]
    shapes += [(*head, 1, new, prefix) for head in windows for new, prefix in ((100, 0), (64, 200))]
    # Enough groups for the tiles of work that fills the device.
    shapes += [(SMS, SMS, 128, 40, 1, 60, 140)]
    for number, (*head, seqs, new, prefix) in enumerate(shapes):
        shape = Heads(*head)._asdict()
        shape |= {"new_tokens": new, "prefix_tokens": prefix, "seqs": seqs}
        number_format = ("float16", "float32")[(number // 5 + number) % 2]
        yield line("attention_prefill", "prefill_attention", number_format, number_format, shape)


def mla_lines() -> Iterator[Line]:
    for heads in (8, 16, 24, 64, 128):
        for seqs, context in ((1, 1), (2, 65), (1, 200)):
            shape = {"heads": heads, "kv_lora_rank": 512, "rope_dim": 64}
            shape |= {"seqs": seqs, "context_tokens": context}
            number = "float32" if context == 65 else "float16"
            yield line("mla_decode", "mla_decode", number, number, shape)


def line(module: str, family: str, activations: str, kv: str, shape: dict[str, int]) -> Line:
    formats = {"activations": activations, "kv": kv}
    fields = {"module": module, "family": family, "kernel": "triton"}
    return fields | {"formats": formats, "shape": shape}


@pytest.mark.slow
@pytest.mark.parametrize("lines", [decode_lines, prefill_lines, mla_lines])
def test_kernels_are_right_in_the_interpreter(tmp_path: Path, lines: Any) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    asked = list(lines())
    path = tmp_path / "cases.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in asked))
    output = module_output("tests.calibrate.measure.measure_triton", str(path))
    errors = [float(text) for text in output.split()]
    for one, error in zip(asked, errors, strict=True):
        assert error <= MODULES[one["module"]].TOLERANCE[one["formats"]["activations"]], one


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_torch_on_this_processor_is_right(name: str) -> None:
    pytest.importorskip("torch")
    module = MODULES[name]
    for case in module.cases(True, "cpu"):
        assert module.prepare(case, "cpu", 1).error() <= module.TOLERANCE["float32"], case


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, 3, 20])
def test_a_reference_in_chunks_is_the_same(monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    torch = pytest.importorskip("torch")
    heads, draw = Heads(4, 2, 16, window), torch.Generator().manual_seed(1)
    query, keys, values = (
        torch.randn(2, tokens, count, 16, generator=draw)
        for tokens, count in ((13, 4), (20, 2), (20, 2))
    )
    whole = attention_prefill.reference(query, keys, values, heads)
    monkeypatch.setattr(attention_prefill, "_MOST_SCORES", 5 * 20 * 2)
    in_chunks = attention_prefill.reference(query, keys, values, heads)
    assert torch.allclose(in_chunks, whole, atol=1e-6)


@pytest.mark.slow
def test_the_check_notices_one_token_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16's tolerance, at the contexts that every kernel is checked at."""
    pytest.importorskip("torch")
    case = next(one for one in attention_decode.cases(True, "cpu") if one.shape["seqs"] == 4)
    prepared = attention_decode.prepare(case, "cpu", 1)
    reference = attention_decode.reference

    def shorter(q: Any, keys: Any, values: Any, table: Any, context: int, heads: Heads) -> Any:
        return reference(q, keys, values, table, context - 1, heads)

    monkeypatch.setattr(attention_decode, "reference", shorter)
    assert prepared.error is not None
    assert prepared.error() > 5 * attention_decode.TOLERANCE["bfloat16"]


ARGUMENTS = {
    **dict.fromkeys(("query", "out"), "*bf16"),
    **dict.fromkeys(("block_table", "contexts"), "*i32"),
    **dict.fromkeys(("partial", "lse"), "*fp32"),
    **dict.fromkeys(("scale", "value_scale"), "fp32"),
    **dict.fromkeys(("kv_heads", "group", "window", "heads"), "i32"),
    **dict.fromkeys(("tiles_per_split", "table_stride", "new", "prefix"), "i32"),
}


def kernels(name: str) -> Any:
    """A module of kernels; not imported before a slow test asks for it."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    return import_module(f"calibrate.measure.kernels.{name}")


def assert_fits(compiled: Compiled, num_warps: int, resident: int) -> None:
    """No spills worth the name, and as many programs at a time as the cut counts on."""
    assert compiled.spill_bytes <= 256
    assert resident * (compiled.shared_bytes + 1024) <= H200_SHARED_BYTES + 1024
    assert resident * num_warps * 32 * compiled.registers <= 2**16


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("kv", ["bf16", "fp8"])
def test_decode_compiles_for_an_h200(kv: str, head_dim: int) -> None:
    module = kernels("decode_triton")
    stored = "*i32" if kv == "fp8" else "*bf16"
    compiled = compile_for_h200(
        module.decode_kernel,
        ARGUMENTS
        | {"keys": stored, "values": stored, "head_dim": head_dim, "block_size": 16}
        | {"tile_rows": 16, "tile_tokens": module.tokens_per_tile(head_dim)}
        | {"is_fp8": kv == "fp8", "has_asm": True},
        num_warps=4,
        num_stages=module._NUM_STAGES,
    )
    assert_fits(compiled, 4, module._RESIDENT[kv == "fp8"])
    # Keys come 16 bytes at a time, past the first cache.
    assert re.search(r"cp\.async\.cg\.shared\.global .*0x10", compiled.ptx)
    assert compiled.tensor_core_instructions == {"mma"}
    assert ("e4m3x2" in compiled.ptx) == (kv == "fp8")


@pytest.mark.slow
@pytest.mark.parametrize("has_window", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_prefill_compiles_for_an_h200(head_dim: int, is_large: bool, has_window: bool) -> None:
    module = kernels("prefill_triton")
    tiles = module.tiles_of(head_dim, 8192 if is_large else 64, 8)
    compiled = compile_for_h200(
        module.prefill_kernel,
        ARGUMENTS
        | {"keys": "*bf16", "values": "*bf16", "head_dim": head_dim, "has_window": has_window}
        | {"rows_per_tile": tiles.queries, "keys_per_tile": tiles.keys},
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    assert_fits(compiled, tiles.num_warps, tiles.resident)
    assert compiled.tensor_core_instructions == {"wgmma"}


@pytest.mark.slow
@pytest.mark.parametrize("heads", [16, 32, 128])
def test_mla_compiles_for_an_h200(heads: int) -> None:
    module = kernels("mla_triton")
    tiles = module.tiles_of(heads)
    compiled = compile_for_h200(
        module.mla_kernel,
        ARGUMENTS
        | {"latents": "*bf16", "rank": 512, "rope": 64, "block_size": 64}
        | {"tile_rows": tiles.heads, "tile_tokens": tiles.tokens},
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    assert_fits(compiled, tiles.num_warps, tiles.resident)
    assert compiled.tensor_core_instructions == {"wgmma" if tiles.heads == 64 else "mma"}


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_joining_splits_compiles_for_an_h200(head_dim: int) -> None:
    module = kernels("split_kv")
    num_warps = module.num_warps_of(head_dim)
    compiled = compile_for_h200(
        module.combine_kernel,
        ARGUMENTS | {"splits": "i32", "head_dim": head_dim, "chunk": 16, "max_splits": MAX_SPLITS},
        num_warps=num_warps,
    )
    assert_fits(compiled, num_warps, 16 // num_warps)
