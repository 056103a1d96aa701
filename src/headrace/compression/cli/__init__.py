"""Commands of compression."""
