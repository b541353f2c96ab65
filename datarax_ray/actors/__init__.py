"""Ray: the reader actor, the pool of them, and RaySource. The only place that imports ray; nothing here loads jax."""
