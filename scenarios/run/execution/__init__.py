"""Run many independent calls at once: on the cores of this machine, or on a Ray or Dask cluster."""

from __future__ import annotations

from sim.errors import FleetcastError


class WorkerLostError(FleetcastError):
    """The process that worked on an item ended each time the item was tried."""
