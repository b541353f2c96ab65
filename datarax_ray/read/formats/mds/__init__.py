"""MDS, the shards of MosaicML Streaming: a folder with an index.json, and samples of named columns in each shard.

shards: from folders to files with an index of their samples. reader: samples by global index, read at random, and what
the bytes of a column are, by the name of its encoding.

A shard: uint32 samples; uint32 where each sample begins, and the last one ends; the columns as JSON; the samples. A
sample: uint32 size of each column that has no fixed one, then all columns. All is little-endian. A compressed shard is
one such file, packed as a whole. Source: docs.mosaicml.com/projects/streaming (Dataset Format), and files that its
MDSWriter 0.13 wrote (tests/sources/mds).
"""
