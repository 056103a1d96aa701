"""Planning: from a profile and a network to step times, and to the codec that is fastest."""
