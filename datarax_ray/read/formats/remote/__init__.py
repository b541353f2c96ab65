"""Files behind URLs: listed, read by byte ranges of one version, and cached in memory and on a disk of the host."""
