"""Work done: what a process that reads tells of itself with every block, for who asks where the time goes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

# Of this process: requests that were asked again, of any storage.
repeats: Counter[str] = Counter()


@dataclass(frozen=True)
class WorkDone:
    """What an actor has done since it began, for all that read with it.

    process: it, which another may have come in the place of.
    num_blocks, num_elements, read_s: blocks, their elements, and seconds that it read.
    num_retries: requests to a storage that it asked again.
    num_from_memory, num_from_storage: records that cacheable=True found there, and that it did not.
    max_rss_nbytes: the most memory that it has had.
    """

    process: str
    num_blocks: int
    num_elements: int
    read_s: float
    num_retries: int = 0
    num_from_memory: int = 0
    num_from_storage: int = 0
    max_rss_nbytes: int = 0

    def is_older(self, other: WorkDone) -> bool:
        """Whether the same process had done less then."""
        return self.process == other.process and self.num_blocks < other.num_blocks
