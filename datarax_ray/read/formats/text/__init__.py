"""CSV and JSON lines: text files whose rows are found by one scan, and parsed a block of them at a time, as columns.

syntax: where rows begin and end, and pyarrow's parser of each format. blocks: files cut into blocks of whole rows, and
the types of their columns, decided once for all. reader: rows by global index.
"""
