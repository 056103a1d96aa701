"""Run a training step by a schedule, inside PyTorch."""
