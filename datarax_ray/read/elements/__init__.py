"""Elements: their columns, what transforms make of them, and who owns their memory."""
