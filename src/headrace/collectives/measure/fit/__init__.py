"""Costs fitted to timed probes: alpha and beta of links, evened out by kind of link."""
