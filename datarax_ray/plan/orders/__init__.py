"""Orders: the pure functions from a position to the record that stands there. One file for each."""
