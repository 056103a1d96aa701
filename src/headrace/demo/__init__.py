"""The demo: one training job on an uneven network, on Gloo and on headrace, told with numbers."""

from headrace.demo.training import TrainingResult, run_training

__all__ = ["TrainingResult", "run_training"]
