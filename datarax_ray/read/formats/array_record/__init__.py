"""ArrayRecord files: what is known of each, how records of one are read, and the reader of many."""
