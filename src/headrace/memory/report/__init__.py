"""Profiles and plans of memory, for people."""
