"""Modules of datarax's names for what datarax_ray.sources defines: its users change the package's name alone."""
