"""Who reads with an actor that outlives its drivers, and when that is over. Pure; times are those of any clock."""

from __future__ import annotations


class Lease:
    """Users hold it for as long as they speak, and the actor for linger_s longer.

    linger_s: inf for ever. lease_s: without a word for so long a user is gone, killed as a rule.
    """

    def __init__(self, linger_s: float, lease_s: float, now: float) -> None:
        self._linger_s, self._lease_s = linger_s, lease_s
        self._heard_at: dict[str, float] = {}
        self._free_since = now  # where there are no users

    def heard(self, user: str, now: float) -> None:
        """Event: a user speaks."""
        self._heard_at[user] = now

    def left(self, user: str, now: float) -> None:
        """Event: a user is done, whether it was known or not."""
        if self._heard_at.pop(user, None) is not None:
            self._free_since = now

    def users(self, now: float) -> frozenset[str]:
        """Those that are there."""
        for user in [user for user, at in self._heard_at.items() if now - at > self._lease_s]:
            self.left(user, now)
        return frozenset(self._heard_at)

    def is_over(self, now: float) -> bool:
        """Whether nobody will come any more."""
        return not self.users(now) and now - self._free_since >= self._linger_s
