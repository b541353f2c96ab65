"""Stored formats, each in a room of its own."""
