"""Batches of elements of about one length."""
