"""A user's model and batches: which modules have rows, and how training reads them."""
