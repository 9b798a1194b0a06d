"""A small transformer served on this machine's processor, beside what a calibration says of it.

`decoder` runs engine steps in plain torch, `loop` times them, `operators` measures the operators of
the same shapes, `predict` prices the steps from these alone, `text` prints both. Nothing is fitted
to the steps. Run it with ``python -m tests.bench --cpu-calibration``.
"""
