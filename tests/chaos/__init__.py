"""Faults injected into a running stream, and what is left of it: the same bytes."""
