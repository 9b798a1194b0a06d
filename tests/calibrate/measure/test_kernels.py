"""Every kernel is right, its check notices errors, and a run works on this processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from calibrate.measure import cli
from calibrate.measure.case import Case
from calibrate.measure.kernels import elementwise, gemm, sampling
from calibrate.measure.run import case_of
from tests.properties.checkout import CHECKOUT, module_output

pytestmark = pytest.mark.slow

MODULES = ("gemm", "elementwise", "embedding", "sampling", "copies", "launches")


@pytest.fixture(autouse=True)
def torch() -> Any:
    """Not imported before a slow test is run."""
    return pytest.importorskip("torch")


def cpu_cases() -> Iterator[Any]:
    """The two smallest shapes of every kernel, op and format that a processor measures."""
    for name in MODULES:
        seen: dict[Any, int] = {}
        for case in import_module(f"calibrate.measure.kernels.{name}").cases(True, "cpu"):
            words = [value for value in case.shape.values() if isinstance(value, str)]
            key = case.variant, *words
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= 2:
                yield pytest.param(name, case, id=f"{name}-{'-'.join(words)}-{seen[key]}")


@pytest.mark.parametrize(("name", "case"), [*cpu_cases()])
def test_a_kernel_on_this_processor_is_right(name: str, case: Case) -> None:
    module = import_module(f"calibrate.measure.kernels.{name}")
    prepared = module.prepare(case, "cpu", 1)
    tolerance = max((module.TOLERANCE[number] for number in case.formats.values()), default=0.0)
    assert prepared.error() <= tolerance
    work = getattr(module, "work", None)
    if work is not None and name != "copies":
        assert (prepared.flops, prepared.num_bytes) == work(case)


def gemm_case(kernel: str, activations: str, weights: str, m: int, n: int, k: int) -> Case:
    formats = {"activations": activations, "weights": weights}
    return Case(family="gemm", kernel=kernel, formats=formats, shape={"m": m, "n": n, "k": k})


@pytest.mark.parametrize("number", ["fp8", "int8"])
@pytest.mark.parametrize(("m", "n", "k"), [(32, 48, 64), (96, 512, 256)])
def test_narrow_products_are_right(number: str, m: int, n: int, k: int) -> None:
    prepared = gemm.prepare(gemm_case("torch", number, number, m, n, k), "cpu", 1)
    assert prepared.error is not None
    assert prepared.error() <= gemm.TOLERANCE[number]


@pytest.mark.parametrize(("m", "n", "k"), [(3, 256, 512), (128, 144, 640), (1, 128, 128)])
def test_block_scales_are_laid_out_as_torch_asks(
    monkeypatch: pytest.MonkeyPatch, torch: Any, m: int, n: int, k: int
) -> None:
    """torch has this product on Hopper only; here its documented layout is read by hand."""

    def scaled(
        a: Any,
        b: Any,
        scale_a: Any,
        by_a: Any,
        _: Any,
        scale_b: Any,
        by_b: Any,
        *rest: Any,
        out: Any,
    ) -> None:
        (rows,), (blocks,) = scale_a, scale_b
        blocks_k, blocks_n = -(-k // 128), -(-n // 128)
        padded_k = -(-blocks_k // 4) * 4
        assert (tuple(rows.shape), rows.stride(0)) == ((m, blocks_k), 1)
        assert rows.stride(1) == m or blocks_k == 1
        assert (tuple(blocks.shape), blocks.stride(0)) == ((padded_k, blocks_n), 1)
        assert blocks.stride(1) == padded_k or blocks_n == 1
        assert (a.stride(1), b.stride(0)) == (1, 1)
        total = torch.zeros(m, n)
        for i in range(blocks_k):
            part = slice(128 * i, 128 * (i + 1))
            spread = blocks[i].repeat_interleave(128)[:n]
            total += (a[:, part].float() @ b[part].float()) * rows[:, i, None] * spread
        out.copy_(total)

    monkeypatch.setattr(torch, "_scaled_mm_v2", scaled)
    prepared = gemm.prepare(gemm_case("torch", "fp8", "fp8_block", m, n, k), "cpu", 1)
    assert prepared.error is not None
    assert prepared.error() <= gemm.TOLERANCE["fp8_block"]


def test_row_scales_are_laid_out_as_torch_asks(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    def scaled(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any, **options: Any) -> None:
        assert (tuple(scale_a.shape), tuple(scale_b.shape)) == ((5, 1), (1, 32))
        assert options["use_fast_accum"]
        out.copy_((a.float() @ b.float()) * scale_a * scale_b)

    monkeypatch.setattr(torch, "_scaled_mm", scaled)
    prepared = gemm.prepare(gemm_case("torch_row", "fp8", "fp8", 5, 32, 64), "cpu", 1)
    assert prepared.error is not None
    assert prepared.error() <= gemm.TOLERANCE["fp8"]


def test_the_check_notices_a_product_with_one_block_too_few(
    monkeypatch: pytest.MonkeyPatch, torch: Any
) -> None:
    right = torch.mm

    def wrong(a: Any, b: Any, out: Any) -> None:
        right(a[:, 16:], b[16:], out=out)

    monkeypatch.setattr(torch, "mm", wrong)
    for number in ("float32", "bfloat16"):
        prepared = gemm.prepare(gemm_case("torch", number, number, 8, 64, 1024), "cpu", 1)
        assert prepared.error is not None
        assert prepared.error() > 5 * gemm.TOLERANCE[number]


@pytest.mark.parametrize("op", ["greedy", "random", "top_p"])
def test_the_check_notices_a_sampler_that_takes_the_second_best(
    monkeypatch: pytest.MonkeyPatch, torch: Any, op: str
) -> None:
    draw = torch.Generator().manual_seed(1)
    sampler = sampling._SAMPLERS[op](8, 1000, "cpu", draw)
    logits = 3 * torch.randn(8, 1000, generator=draw)
    assert sampler.error(logits) <= sampling.TOLERANCE["float32"]
    sample = sampler.sample

    def second_best(logits: Any) -> None:
        sample(logits)
        best = sampler.tokens.clone()
        sample(logits.scatter(1, best[:, None], -torch.inf) if op == "greedy" else logits)
        if op != "greedy":
            sampler.tokens.copy_((best + 1) % 1000)

    monkeypatch.setattr(sampler, "sample", second_best)
    assert sampler.error(logits) > 10 * sampling.TOLERANCE["float32"]


def test_triton_kernels_are_right_in_the_interpreter(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    lines = [
        {
            "module": "elementwise",
            "family": "elementwise",
            "kernel": "triton",
            "formats": {"activations": number},
            "shape": {"op": op, "rows": rows, "width": width},
        }
        for op in elementwise._WIDTHS
        for number in ("float32", "float16")
        for rows, width in ((1, 256), (5, 1280), (3, 4352))
    ]
    errors = interpreted(tmp_path, lines)
    for line, error in zip(lines, errors, strict=True):
        case = case_of(line)
        tolerance = elementwise.TOLERANCE[case.formats["activations"]]
        # The interpreter rounds to fp8 towards zero: half the numbers are one place off.
        is_fp8 = str(case.shape["op"]).startswith("quantise")
        assert error <= (0.08 if is_fp8 else tolerance), case


def test_compiled_kernels_say_what_they_should(monkeypatch: pytest.MonkeyPatch, torch: Any) -> None:
    """Not compiled here, their torch code is run as it is written."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.delitem(sys.modules, f"{elementwise.__package__}.elementwise_inductor", False)
    on_gpu = [case for case in elementwise.cases(False, "cuda") if case.kernel == "inductor"]
    assert {str(case.shape["op"]) for case in on_gpu} == set(elementwise._COMPILED)
    for op in elementwise._COMPILED:
        for number in ("float32", "bfloat16"):
            case = Case(
                family="elementwise",
                kernel="inductor",
                formats={"activations": number},
                shape={"op": op, "rows": 3, "width": 1280},
            )
            error = elementwise.prepare(case, "cpu", 1).error
            assert error is not None
            assert error() <= elementwise.TOLERANCE[number]


def interpreted(folder: Path, lines: list[dict[str, Any]]) -> list[float]:
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = module_output("tests.calibrate.measure.measure_triton", str(path))
    return [float(text) for text in output.split()]


def test_triton_kernels_compile_for_hopper() -> None:
    """As far as machine code, at the widest rows of the grid."""
    pytest.importorskip("triton")
    code = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from calibrate.measure.kernels import elementwise_triton as kernels

POINTERS = {"eps": "fp32", "scales": "*fp32", "positions": "*i64", "slots": "*i64"}
TENSORS = "x residual weight total out cos sin keys values"
POINTERS |= dict.fromkeys(TENSORS.split(), "*bf16")
CONSTANTS = {
    "_add_rms_norm": {"block": 8192}, "_residual_add": {"block": 2048},
    "_silu_mul": {"block": 2048}, "_rotary": {"half_dim": 64, "some_heads": 16},
    "_quantise_fp8": {"block": 16384}, "_kv_write": {"block": 1024},
    "_quantise_fp8_block": {"some_groups": 16, "group_size": 128},
}
for name, constants in CONSTANTS.items():
    kernel = getattr(kernels, name)
    types = {p.name: POINTERS.get(p.name, "i32") for p in kernel.params}
    types |= dict.fromkeys(constants, "constexpr")
    if "quantize" in name:
        types["out"] = "*fp8e4nv"
    source = ASTSource(kernel, types, constants)
    print(name, len(compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sizes = dict(line.split() for line in done.stdout.splitlines())
    assert {f"_{op}" for op in elementwise._WIDTHS} == set(sizes)


def run_cli(*options: str) -> list[dict[str, Any]]:
    out = options[options.index("--out") + 1]
    assert cli.main(["--device", "cpu", "--quick", *options]) == 0
    return [json.loads(line) for line in Path(out).read_text().splitlines()]


def test_a_run_on_this_processor(tmp_path: Path) -> None:
    out = str(tmp_path / "out.jsonl")
    options = ("--families", "gemm,elementwise", "--budget-s", "20", "--out", out)
    lines = run_cli(*options)
    assert lines[0]["kind"] == "machine"
    assert lines[0]["cores"] == len(os.sched_getaffinity(0))
    timings = [line for line in lines if line["kind"] == "timing"]
    assert {line["family"] for line in timings} == {"gemm", "elementwise"}
    assert not [line for line in lines if line["kind"] == "refused"]
    for line in timings:
        assert line["machine"] == lines[0]["id"]
        assert 0 < line["seconds_low"] <= line["seconds"] <= line["seconds_high"] < 1
        assert line["error"] is not None
        # No processor is faster: a call that did nothing would be.
        assert line["flops"] / line["seconds"] < 2e13


def test_a_run_that_was_cut_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = ("--families", "launch,embedding", "--out", str(out))
    whole = {case_of(line).key for line in run_cli(*options) if line["kind"] == "timing"}
    content = out.read_bytes()
    out.write_bytes(content[: len(content) // 2])
    lines = run_cli(*options)
    keys = [case_of(line).key for line in lines if line["kind"] == "timing"]
    assert len(keys) == len(set(keys))
    assert set(keys) == whole
    assert [line["kind"] for line in lines].count("machine") == 2
    assert run_cli(*options)[: len(lines)] == lines


def test_collectives_of_two_processes_are_right(tmp_path: Path) -> None:
    families = "all_reduce,all_gather,reduce_scatter,all_to_all,send_recv"
    lines = run_cli("--families", families, "--out", str(tmp_path / "out.jsonl"))
    timings = [line for line in lines if line["kind"] == "timing"]
    assert {line["family"] for line in timings} == set(families.split(","))
    assert not [line for line in lines if line["kind"] == "refused"]
    for line in timings:
        assert line["shape"]["ranks"] == 2
        assert line["kernel"] == "gloo"
        assert line["error"] <= 1e-5


def test_without_a_gpu_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], torch: Any
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert cli.main(["--out", str(tmp_path / "out.jsonl"), "--families", "launch"]) == 2
    assert "no CUDA device here; --device cpu measures this processor" in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
