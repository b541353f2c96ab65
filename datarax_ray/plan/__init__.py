"""Pure decisions about the stream: order, shards, ownership, position. NumPy and the standard library only."""
