"""Measurement of a training job's step, and of codecs while all ranks of a host encode."""
