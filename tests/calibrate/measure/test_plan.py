"""The grid has what models need, each case once, small shapes first, in independent parts."""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain

import numpy as np
import pytest

from calibrate.measure import cli
from calibrate.measure.case import Case, Variant
from calibrate.measure.kernels import collectives, gemm
from calibrate.measure.kernels.gemm_shapes import FEWEST_ROWS, SEQUENCES, Matrix
from calibrate.measure.plan import make_plan
from costmodels.layouts.shard import shard
from costmodels.models.catalog import load_model
from costmodels.operators.operators import logit_operators, token_operators

OWN = ("gemm", "elementwise", "embedding", "sampling", "copy", "launch")
WHOLE = (1, 1)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("quick", [True, False])
def test_every_case_is_there_once(device: str, quick: bool) -> None:
    plan = make_plan(OWN, quick, device, WHOLE)
    keys = Counter(one.case.key for cases in plan.families.values() for one in cases)
    assert set(keys.values()) == {1}
    assert all(plan.families.values())


def test_a_quick_grid_is_part_of_the_full_one() -> None:
    quick, full = (make_plan(OWN, quick, "cuda", WHOLE) for quick in (True, False))
    for family in OWN:
        names = [{one.case.key for one in plan.families[family]} for plan in (quick, full)]
        assert names[0] <= names[1], family


@pytest.mark.parametrize("family", OWN)
def test_the_first_case_of_a_kernel_is_cheap_to_check(family: str) -> None:
    for cases in make_plan((family,), False, "cuda", WHOLE).variants.values():
        assert cases[0].seconds == pytest.approx(min(one.seconds for one in cases), rel=0.5)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_parts_share_the_cases_evenly(parts: int) -> None:
    whole = make_plan(("gemm", "sampling"), False, "cuda", WHOLE)
    split = [make_plan(whole.families, False, "cuda", (n, parts)) for n in range(1, parts + 1)]
    for family, cases in whole.families.items():
        dealt = [part.families[family] for part in split]
        keys = [one.case.key for one in chain(*dealt)]
        assert Counter(keys) == Counter(one.case.key for one in cases)
        loads = [sum(one.seconds for one in some) for some in dealt]
        assert max(loads) - min(loads) <= max(one.seconds for one in cases)


def test_a_part_alone_covers_every_curve() -> None:
    """Each weight matrix is measured over nearly its whole range of steps in each of two parts."""
    plan = make_plan(("gemm",), False, "cuda", WHOLE)
    whole = curves([one.case for one in plan.families["gemm"]])
    for number in (1, 2):
        part = make_plan(("gemm",), False, "cuda", (number, 2))
        found = curves([one.case for one in part.families["gemm"]])
        assert set(found) == set(whole)
        for matrix, rows in whole.items():
            assert min(found[matrix]) <= 16 * min(rows), matrix
            assert max(found[matrix]) >= max(rows) / 4, matrix


def curves(cases: list[Case]) -> dict[tuple[Variant, tuple[int, int]], list[int]]:
    found: dict[tuple[Variant, tuple[int, int]], list[int]] = {}
    for case in cases:
        shape = {name: int(value) for name, value in case.shape.items()}
        key = case.variant, (shape["n"], shape["k"])
        found.setdefault(key, []).append(shape["m"])
    return found


def test_steps_up_to_16384_tokens_are_measured_without_wide_gaps() -> None:
    for (variant, matrix), rows in curves(list(gemm.cases(False, "cuda"))).items():
        assert max(np.diff(np.log2(sorted(rows)))) <= 3.01, (variant, matrix)
        fewest = FEWEST_ROWS.get(dict(variant[2])["weights"], 1)
        assert fewest <= rows[0] <= 2 * fewest
        is_layer = Matrix(*matrix) in {
            Matrix(6144, 4096), Matrix(8192, 14336), Matrix(10240, 5120), Matrix(2112, 7168)
        }  # fmt: skip
        if is_layer and variant[1] == "torch" and dict(variant[2])["activations"] == "bfloat16":
            assert max(rows) == 16384
            assert max(np.diff(np.log2(sorted(rows)))) <= 2


@pytest.mark.parametrize(
    ("model", "ranks"),
    [
        ("llama-3.1-8b", (1, 2, 4, 8)),
        ("llama-3.1-70b", (2, 4, 8)),
        ("Qwen/Qwen3-30B-A3B", (1,)),
        ("Qwen/Qwen3-32B", (1, 2, 4)),
        ("deepseek-ai/DeepSeek-V3", (1, 8)),
        ("openai/gpt-oss-20b", (1, 2)),
        ("openai/gpt-oss-120b", (1, 2)),
        ("kimi-linear-48b-a3b", (1,)),
    ],
)
def test_every_matrix_that_the_cost_models_price_is_measured(
    model: str, ranks: tuple[int, ...]
) -> None:
    measured = {matrix for _, matrix in curves(list(gemm.cases(False, "cuda")))}
    for tp in ranks:
        rank = shard(load_model(model), tp)
        tokens = np.array([16.0])
        for operator in [*token_operators(rank, tokens), *logit_operators(rank, tokens, 4.0)]:
            if operator.kind == "gemm" and operator.matrix is not None:
                inner, outer = operator.matrix
                assert (outer, inner) in measured, f"{operator.name} at TP {tp}"


def test_logits_are_measured_for_as_many_sequences_as_engines_run() -> None:
    cases = curves(list(gemm.cases(False, "cuda")))
    variant = next(v for v, matrix in cases if matrix == (128256, 4096))
    assert sorted(cases[variant, (128256, 4096)]) == sorted(SEQUENCES)
    assert max(SEQUENCES) == 1024


def test_the_grid_fits_its_time() -> None:
    """Less than seven minutes of the full grid are these families', and one of the quick one."""
    for quick, most_s in ((False, 420), (True, 60)):
        plan = make_plan(OWN, quick, "cuda", WHOLE)
        assert sum(one.seconds for one in chain(*plan.families.values())) < most_s
    on_cpu = make_plan(OWN, True, "cpu", WHOLE)
    assert sum(one.seconds for one in chain(*on_cpu.families.values())) < 10


def test_options_that_cannot_be_used_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--families", "gemm,conv", "--list"]) == 2
    assert "no family 'conv'; there are gemm, " in capsys.readouterr().err
    for part in ("3/2", "0/2", "half"):
        with pytest.raises(SystemExit):
            cli.main(["--part", part, "--list"])
        assert "write 1/2 for the first of two parts" in capsys.readouterr().err


def test_the_list_says_how_many_cases_and_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--list", "--families", "sampling,copy", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = {line.split()[0]: int(line.split()[1].replace(",", "")) for line in lines}
    plan = make_plan(("sampling", "copy"), True, "cuda", WHOLE)
    expected = {family: len(cases) for family, cases in plan.families.items()}
    assert counts == expected | {"all": sum(expected.values())}


def test_collectives_go_from_256_bytes_to_a_gib_over_all_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives, "_rank_counts", lambda device: [2, 4, 8])
    cases = list(collectives.cases(False, "cuda"))
    assert len({case.key for case in cases}) == len(cases)
    for family in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for ranks in (2, 4, 8):
            sizes = [
                int(case.shape["bytes"])
                for case in cases
                if case.family == family and case.shape["ranks"] == ranks
            ]
            assert (min(sizes), max(sizes)) == (256, 2**30)
            assert max(np.diff(np.log2(sizes))) <= 1
            # Elements of two bytes, as many for each rank.
            assert not any(size % (2 * ranks) for size in sizes)
    assert {case.shape["ranks"] for case in cases if case.family == "send_recv"} == {2}
    quick = {case.key for case in collectives.cases(True, "cuda")}
    assert quick < {case.key for case in cases}


def test_one_gpu_has_no_collectives_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "_rank_counts", lambda device: [1])
    cases = list(collectives.cases(False, "cuda"))
    assert [case.shape for case in cases] == [{"ranks": 1, "bytes": 256}] * 5
    results = list(collectives.measure(cases, "cuda", 0, math.inf))
    assert [case for case, _ in results] == cases
    for _, fields in results:
        assert fields == {"reason": "a collective needs at least two GPUs in one machine"}
