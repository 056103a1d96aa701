"""Running: the index itself, trials of configurations, and recordings of a live index."""
