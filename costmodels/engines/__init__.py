"""The serving engine: host time, CUDA graphs, attention backends, and calibration files."""
