"""What ends a measurement run in order."""

from __future__ import annotations


class MeasureError(Exception):
    """An option or a file that cannot be used; the message says what would be right."""


class DeviceLostError(Exception):
    """The device answers no more calls of this process; a new process may go on."""
