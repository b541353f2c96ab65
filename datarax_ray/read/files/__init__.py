"""From what users name to the files that are there, on any storage."""
