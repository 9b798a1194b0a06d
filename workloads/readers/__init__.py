"""Trace readers, one module a format; all give a `Recording`."""
