"""WebDataset: tar files whose consecutive members of one key are a sample.

shards: from what a user names to files with an index of their samples, by the headers alone. reader: samples by global
index, read at random. extensions: what a member's extension says of its bytes. Source: the webdataset package
(tariterators.py, autodecode.py), which reads the same samples in the same order, forwards only.
"""
