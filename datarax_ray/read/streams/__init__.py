"""Streams that are no single run of records: mixtures, and shards that are read forwards."""
