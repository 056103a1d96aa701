"""Synthesis guided by a sketch (TACCL 5.5): route, order, schedule; and sketches found by search.

`guided_synthesis` runs the three stages under a sketch, `autosketch` searches for the sketch.
"""
