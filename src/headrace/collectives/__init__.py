"""Collectives: tensors between ranks, measured, planned, run, adapted."""
