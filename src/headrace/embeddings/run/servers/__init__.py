"""Servers of embedding rows, and a trainer's side of them."""
