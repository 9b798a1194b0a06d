"""Inspect a trace, a device's memory or one engine step, without a simulation."""
