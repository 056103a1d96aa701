"""Programs on the native executor, behind `torch.distributed`."""
