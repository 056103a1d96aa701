"""Pages of attention."""
