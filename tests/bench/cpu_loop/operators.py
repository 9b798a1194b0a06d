"""Measure the operators of the loop's model with `calibrate.measure`, at sizes around its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path

from calibrate.measure.case import Case
from calibrate.measure.kernels import modules_of
from calibrate.measure.machine import device_name
from calibrate.measure.plan import Plan, Planned
from calibrate.measure.run import Record, Run
from tests.bench.cpu_loop.shape import DTYPE, LoopModel

# Each in full, and for quick runs.
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 8, 32, 128)
_SEQS = (1, 2, 4, 8, 16, 32), (1, 8, 32)
_CONTEXTS = (64, 256, 1024, 2048), (64, 512, 2048)
_NEW = (32, 64, 128, 256), (32, 128)
_PREFIXES = (0, 256, 1024, 2048), (0, 256, 1024)
_MOST_KV_TOKENS = 32768
_COPY_BYTES = (2**20, 2**24)
_CASE_S = 0.1


def measure_operators(model: LoopModel, path: Path, *, quick: bool, seed: int) -> None:
    """Every case once, into a file of lines that is not there yet."""
    plan = Plan({})
    for case in cases(model, quick):
        planned = Planned(case, modules_of(case.family)[0], _CASE_S)
        plan.families.setdefault(case.family, []).append(planned)
        plan.variants.setdefault(case.variant, []).append(planned)
    record = Record(path, device_name("cpu"))
    try:
        Run(plan, record, "cpu", seed, inf, _quiet).all()
    finally:
        record.close()


def cases(model: LoopModel, quick: bool) -> Iterator[Case]:
    """All that a step is made of, smallest first; ``quick``: at fewer sizes."""
    rows, seqs, contexts, new, prefixes = (
        axis[quick] for axis in (_ROWS, _SEQS, _CONTEXTS, _NEW, _PREFIXES)
    )
    formats = {"activations": DTYPE, "weights": DTYPE}
    matrices = (
        (model.q_size + 2 * model.kv_size, model.hidden),
        (model.hidden, model.q_size),
        (2 * model.inter, model.hidden),
        (model.hidden, model.inter),
    )
    for n, k in dict.fromkeys(matrices):
        for m in rows:
            yield _case("gemm", {"m": m, "n": n, "k": k}, formats)
    for m in seqs:
        yield _case("gemm", {"m": m, "n": model.vocab, "k": model.hidden}, formats)
    widths = {
        "add_rms_norm": model.hidden,
        "rotary": model.q_size + model.kv_size,
        "kv_write": 2 * model.kv_size,
        "silu_mul": model.inter,
    }
    for op, width in widths.items():
        for m in rows:
            yield _case("elementwise", {"op": op, "rows": m, "width": width})
    for m in rows:
        yield _case("embedding", {"rows": m, "width": model.hidden, "vocab": model.vocab})
    for m in seqs:
        yield _case("sampling", {"op": "random", "rows": m, "vocab": model.vocab})
    heads = {
        "q_heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "window": 0,
    }
    kv = {"activations": DTYPE, "kv": DTYPE}
    for context in contexts:
        for count in seqs:
            if count * context <= _MOST_KV_TOKENS:
                shape = heads | {"seqs": count, "context_tokens": context}
                yield _case("decode_attention", shape, kv)
    for tokens in new:
        for prefix in prefixes:
            shape = heads | {"new_tokens": tokens, "prefix_tokens": prefix, "seqs": 1}
            yield _case("prefill_attention", shape, kv)
    for size in _COPY_BYTES:
        yield _case("copy", {"direction": "d2d", "bytes": size}, {})


def _case(
    family: str, shape: Mapping[str, int | str], formats: Mapping[str, str] | None = None
) -> Case:
    formats = {"activations": DTYPE} if formats is None else formats
    return Case(family=family, kernel="torch", formats=formats, shape=shape)


def _quiet(text: str) -> None:
    """The run's own words are not wanted."""
