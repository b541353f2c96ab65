"""The clusters of tests, and what they do without."""

from __future__ import annotations

# For a head: no test asks its dashboard, wants it to grow, or looks at what other processes print. Each is a process,
# and half a second of CPU or more.
BARE = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
