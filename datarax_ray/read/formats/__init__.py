"""Formats: one room, or one file, for each kind of file that is read at random."""
