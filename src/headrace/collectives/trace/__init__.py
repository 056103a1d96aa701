"""One collective step by step: the records of all ranks, on one clock, and the prediction."""
