"""Pages of compression's artifacts."""
