"""Schedules of compression: the level of each layer, chosen as training goes on."""
