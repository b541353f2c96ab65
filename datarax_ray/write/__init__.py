"""Writes datasets: shards of records in files, whole or not there, the same bytes for any number of hosts."""
