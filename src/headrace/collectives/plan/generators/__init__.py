"""Generators of schedules: known algorithms (`templates`) and searches, listed in `table`."""
