"""Readers of a job's data, and the cacher's side of them."""
