"""Pure decisions about the stream: order, partitions, ownership, position. NumPy and the standard library only."""
