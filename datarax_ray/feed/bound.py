"""How many bytes may be in flight: of a pool in all, and of each driver that reads with it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from datarax_ray.feed.window import DEPTH, TARGET_BLOCK_NBYTES

# Enough for blocks of the size at which they are cheap, from 4 actors.
DEFAULT_MAX_NBYTES = DEPTH * 4 * TARGET_BLOCK_NBYTES
# The rest is for batches, for what Ray gives back late, and for others.
_MOST_OF_STORE = 0.4


@dataclass(frozen=True)
class Bound:
    """nbytes: of all drivers together; None to follow the actors: blocks of the best size from each to each driver.

    node_nbytes, all_nbytes: the object stores of a node, on average, and of all nodes, of which most stays free then.
    """

    nbytes: int | None
    node_nbytes: float = math.inf
    all_nbytes: float = math.inf

    def of_each(self, num_actors: int, num_drivers: int = 1) -> int:
        """What each of the drivers may have in flight; at least 1, with which a window has one chunk.

        >>> Bound(2**30).of_each(num_actors=64, num_drivers=4) == 2**28
        True
        """
        if self.nbytes is not None:
            return max(1, self.nbytes // num_drivers)
        wanted = max(DEFAULT_MAX_NBYTES, num_actors * DEPTH * TARGET_BLOCK_NBYTES)
        room = _MOST_OF_STORE * min(self.node_nbytes, self.all_nbytes / num_drivers)
        return int(min(wanted, room)) or DEFAULT_MAX_NBYTES

    def allowance(self, num_actors: int, num_drivers: int, begun_with: int) -> float:
        """What each may have, in parts of what a driver alone might have when there were `begun_with` actors."""
        return self.of_each(num_actors, num_drivers) / self.of_each(begun_with)
