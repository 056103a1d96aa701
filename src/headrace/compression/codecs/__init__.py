"""Codecs: from gradients to payloads and back, as generators of the exchanges that they need."""
