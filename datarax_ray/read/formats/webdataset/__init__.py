"""WebDataset: tar files whose consecutive members of one key are a sample.

Source: the webdataset package (tariterators.py, autodecode.py), which reads the same samples in the same order,
forwards only.
"""
