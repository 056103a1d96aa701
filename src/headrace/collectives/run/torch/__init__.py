"""The executor as a process group of torch: groups, calls, tensors as buffers, futures."""
