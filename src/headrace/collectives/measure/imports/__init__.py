"""Profiles from the results of other tools."""
