"""Parquet: footers, row groups, and the records in them."""
