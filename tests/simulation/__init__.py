"""Scenarios for datarax_ray.simulate: `python -m tests.simulation` prints what comes of them."""
