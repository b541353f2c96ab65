"""ArrayRecord files that are on no disk of this machine: found, and read by exact byte ranges."""
