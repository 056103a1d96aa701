"""Commands of training within a memory budget."""
