"""The driver's decisions: what to ask of whom and when, and how blocks become batches. Nothing here waits by itself."""
