"""Training: servers of rows, the cacher, readers of data, and the trainers' caches."""
