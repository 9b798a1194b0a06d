"""Linear-attention kernels are right in Triton's interpreter, and compile for an H200."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from calibrate.measure.kernels import linear_chunk, linear_recurrent
from calibrate.measure.kernels.linear_inputs import HEADS, make_inputs
from tests.calibrate.measure.triton_launches import fits, launches_of
from tests.properties.checkout import module_output

TOLERANCE = {"float32": 1e-4, "float16": 2e-3}
KINDS = ("kda", "gdn")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("module", [linear_chunk, linear_recurrent])
def test_a_grid_covers_what_engines_run(module: Any, kind: str) -> None:
    cases = [case for case in module.cases(False, "cuda") if case.family.startswith(kind)]
    assert {case.shape["heads"] for case in cases} == set(HEADS[kind])
    assert len({case.key for case in cases}) == len(cases)
    if module is linear_chunk:
        assert {case.shape["tokens"] for case in cases} >= {64, 1024, 65536}
        assert {case.shape["seqs"] for case in cases} == {1, 2, 4, 8, 16}
    else:
        assert {case.shape["seqs"] for case in cases} >= {1, 64, 1024}
    smallest, *others = (module.work(case) for case in cases)
    assert all(work >= smallest for work in others)


def test_a_step_moves_its_states_twice() -> None:
    """64 KiB a head and sequence dominate: 32 heads of 8 sequences are read and written."""
    case = next(
        case
        for case in linear_recurrent.cases(False, "cuda")
        if case.shape["heads"] == 32 and case.shape["seqs"] == 8
    )
    states = 2 * 8 * 32 * 128 * 128 * 4
    assert states < linear_recurrent.work(case)[1] < 1.03 * states


@pytest.mark.slow
def test_torch_steps_as_the_recurrence_says() -> None:
    pytest.importorskip("torch")
    for case in linear_recurrent.cases(True, "cpu"):
        prepared = linear_recurrent.prepare(case, "cpu", 1)
        assert prepared.error is not None
        assert prepared.error() < linear_recurrent.TOLERANCE["float32"]
        assert (prepared.flops, prepared.num_bytes) == linear_recurrent.work(case)


@pytest.mark.slow
def test_kernels_compute_the_recurrence() -> None:
    pytest.importorskip("triton")
    errors = json.loads(module_output("tests.calibrate.measure.interpret_linear"))
    assert len(errors) == 44
    wrong = {
        name: error
        for name, error in errors.items()
        if not error <= next(TOLERANCE[number] for number in TOLERANCE if number in name)
    }
    assert not wrong


def launches(kind: str) -> Iterator[Any]:
    """Yield the launches for few and for many sequences, at the sizes that are measured."""
    import torch

    for seqs in (1, 32):
        sizes = {"heads": 32, "head_k_dim": 128, "head_v_dim": 128, "seqs": seqs}
        inputs = make_inputs(kind, sizes | {"tokens": 65}, torch.bfloat16, "cpu", 1)
        states = torch.empty(seqs, 32, 128, 128)
        space = linear_chunk.make_workspace(inputs)
        yield from launches_of(lambda: linear_chunk.launch(inputs, states, space))  # noqa: B023
        inputs = make_inputs(kind, sizes | {"tokens": 1}, torch.bfloat16, "cpu", 1)
        slots, out = torch.arange(seqs, dtype=torch.int32), torch.empty_like(inputs.values)
        yield from launches_of(lambda: linear_recurrent.launch(inputs, slots, states, out))  # noqa: B023


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_compile_for_an_h200(kind: str) -> None:
    pytest.importorskip("triton")
    compiled = [(launch.name, launch.compiled()) for launch in launches(kind)]
    names = {name for name, _ in compiled}
    scores = "scores_by_channel" if kind == "kda" else "scores_by_head"
    whole = {"prepare_chunks", "carry_states", "read_states"}
    assert names == whole | {"sum_decays", scores, "solve_systems", "delta_step"}
    for name, kernel in compiled:
        assert fits(kernel), (name, kernel.spill_bytes, kernel.shared_bytes)
        if name in whole:
            assert kernel.tensor_core_instructions == {"wgmma"}, name
