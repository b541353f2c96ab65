"""Streams: of records read by index, of shards read forwards, and mixtures."""
