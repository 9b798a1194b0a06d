"""How the keys of attention are cut among programs."""

from __future__ import annotations

from typing import NamedTuple

MAX_SPLITS = 128
SMS = 132
"""Multiprocessors of an H100 or H200."""
_LEAD_TILES = 1
"""What a program's start and end cost, in tiles."""
_JOIN_TILES = 2
"""What joining costs, and a tile more for each so many numbers that splits write and it reads."""
_JOINED_A_TILE = 192 * 1024


class Splits(NamedTuple):
    """The tiles of one row of work, cut evenly: the last split may have fewer."""

    splits: int
    tiles_per_split: int


def split_tiles(
    rows_of_work: int,
    tiles: int,
    *,
    resident: int,
    joined: int = 0,
    fewest: int = 1,
    splits: int | None = None,
) -> Splits:
    """The cut that finishes first. ``resident``: programs on one multiprocessor at a time.

    All programs of a wave are taken to advance a tile at a time. ``joined``: numbers that come out
    in the end, of which each split writes as many. ``fewest``: tiles of a split, less than which
    are not worth it. ``splits``: as many, or fewer where some would be empty, whatever it costs.
    """
    most = max(1, min(tiles // fewest, MAX_SPLITS))
    cuts = {-(-tiles // wanted) for wanted in ([splits] if splits else range(1, most + 1))}
    options = [Splits(-(-tiles // a_split), a_split) for a_split in cuts]

    def cost(cut: Splits) -> tuple[float, int]:
        waves = -(-rows_of_work * cut.splits // (SMS * resident))
        join = _JOIN_TILES + cut.splits * joined / _JOINED_A_TILE if cut.splits > 1 else 0
        return waves * (cut.tiles_per_split + _LEAD_TILES) + join, cut.splits

    return min(options, key=cost)
