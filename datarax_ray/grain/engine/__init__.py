"""Grain's engine: samplers, operations and batching, without Grain. Actors import it, and never load Grain or JAX."""
