"""Attention with shared probabilities, and its caches, inside PyTorch."""
