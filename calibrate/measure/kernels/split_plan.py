"""Plan how the keys of attention are split among programs."""

from __future__ import annotations

from typing import NamedTuple

MAX_SPLITS = 128
SMS = 132
"""Number of multiprocessors of an H100 or H200."""
_LEAD_TILES = 1
"""Cost of a program's start and end, in tiles."""
_JOIN_TILES = 2
"""Fixed cost of combining splits, in tiles. One more tile is added per `_JOINED_A_TILE` numbers
that the splits write and the combining pass reads."""
_JOINED_A_TILE = 192 * 1024


class Splits(NamedTuple):
    """An even split of the tiles of one row of work; the last split may have fewer."""

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
    """Return the split that finishes first. ``resident``: programs on one multiprocessor at a time.

    All programs of a wave are assumed to advance one tile at a time. ``joined`` is the amount of
    numbers in the final result, and every split writes that many. ``fewest`` is the least number of
    tiles per split. ``splits`` sets the number of splits regardless of cost, or fewer if some would
    be empty.
    """
    most = max(1, min(tiles // fewest, MAX_SPLITS))
    cuts = {-(-tiles // wanted) for wanted in ([splits] if splits else range(1, most + 1))}
    options = [Splits(-(-tiles // a_split), a_split) for a_split in cuts]

    def cost(cut: Splits) -> tuple[float, int]:
        waves = -(-rows_of_work * cut.splits // (SMS * resident))
        join = _JOIN_TILES + cut.splits * joined / _JOINED_A_TILE if cut.splits > 1 else 0
        return waves * (cut.tiles_per_split + _LEAD_TILES) + join, cut.splits

    return min(options, key=cost)
