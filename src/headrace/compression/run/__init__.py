"""Compression inside PyTorch: hooks, and exchanges on process groups."""
