"""Errors that can occur between processes."""

from __future__ import annotations

from sim.errors import FleetcastError


class WorkerLostError(FleetcastError):
    """The process that worked on an item ended each time the item was tried."""
