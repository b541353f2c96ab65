"""Host I/O in one process: files in, blocks of decoded elements out. Nothing here imports Ray or JAX."""
