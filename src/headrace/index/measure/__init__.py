"""Measuring: a trace is read, sampled and encoded."""
