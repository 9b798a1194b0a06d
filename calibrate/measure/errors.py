"""Errors that end a measurement run in order."""

from __future__ import annotations


class MeasureError(Exception):
    """Raised for an option or a file that cannot be used. The message says what would be right."""


class DeviceLostError(Exception):
    """Raised when the device answers no more calls of this process. A new process may continue."""
