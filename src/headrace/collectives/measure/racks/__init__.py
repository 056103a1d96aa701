"""Racks of hosts, inferred from bandwidths and from concurrent flows."""
