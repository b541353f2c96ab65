"""Hugging Face: loading datasets, and the shards of those that are streamed."""
