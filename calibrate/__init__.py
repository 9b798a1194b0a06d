"""Measurements of real engines and devices: reading them, and fitting what a cost model needs."""
