"""Pages of profiles and plans of an index."""
