"""The operators of a training step, and their costs."""
