"""Observed traffic, and the estimate of the network that follows from it."""
