"""A pool as those outside of its program see it: what the head of the cluster keeps of it, and who may resize it."""
