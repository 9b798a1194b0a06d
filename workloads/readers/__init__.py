"""Trace readers, one module per format, each of which returns a `Recording`."""
