"""Arrow: tables, and the one policy from their columns to NumPy's."""
