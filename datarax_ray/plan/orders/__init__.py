"""Orders: pure functions from a position to a record."""
