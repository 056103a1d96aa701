"""Random operators that run again draw the numbers of their first run, and no others."""

from collections.abc import Callable
from typing import Any

import torch


def generator_state(device: torch.device) -> torch.Tensor:
    """Return the state of a device's default generator: bytes, on the CPU."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def set_generator_state(device: torch.device, state: torch.Tensor) -> None:
    """Set the state of a device's default generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def state_bytes(device: torch.device) -> int:
    """Return the bytes of a generator's state."""
    return generator_state(device).numel()


class Replay:
    """A random operator, with the generator's state of its first run as its first argument."""

    def __init__(self, target: Callable[..., Any], device: torch.device) -> None:
        self.target = target
        self.device = device
        self.__name__ = "replay"

    def __call__(self, state: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the operator; the generator is left as it is."""
        present = generator_state(self.device)
        set_generator_state(self.device, state)
        try:
            return self.target(*args, **kwargs)
        finally:
            set_generator_state(self.device, present)
