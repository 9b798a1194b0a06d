"""The device part of calibration: standard library, numpy, torch and triton only."""
