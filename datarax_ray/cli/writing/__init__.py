"""The commands that write datasets."""
