"""Identity: what tells data and code apart, in a few bytes, the same in every process."""
