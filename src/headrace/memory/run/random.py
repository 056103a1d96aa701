"""Random operators that run again draw the numbers of their first run, and no others.

The default generator of a device is one for all threads of a process. So in fitted steps one thread
draws at a time: between a state and the draw from it no other draw may come.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headrace.memory.locks import DRAWS


def generator_state(device: torch.device) -> Tensor:
    """Return the state of a device's default generator: bytes, on the CPU."""
    if device.type == "cpu":
        return torch.get_rng_state()
    return torch.get_device_module(device).get_rng_state(device)


def set_generator_state(device: torch.device, state: Tensor) -> None:
    """Set the state of a device's default generator."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def state_bytes(device: torch.device) -> int:
    """Return the bytes of a generator's state."""
    return generator_state(device).numel()


def empty_state(device: torch.device) -> Tensor:
    """Return a tensor for a generator's state, on the CPU."""
    return torch.empty(state_bytes(device), dtype=torch.uint8, device="cpu")


class Draw:
    """A random operator that runs once."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self.target = target
        self.__name__ = "draw"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the operator."""
        with DRAWS:
            return self.target(*args, **kwargs)


class FirstDraw:
    """A random operator that will run again, with a tensor for the state as its first argument."""

    def __init__(self, target: Callable[..., Any], device: torch.device) -> None:
        self.target = target
        self.device = device
        self.__name__ = "first_draw"

    def __call__(self, state: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Write the generator's state into the tensor, and run the operator."""
        with DRAWS:
            state.copy_(generator_state(self.device))
            return self.target(*args, **kwargs)


class Replay:
    """A random operator, with the generator's state of its first run as its first argument."""

    def __init__(self, target: Callable[..., Any], device: torch.device) -> None:
        self.target = target
        self.device = device
        self.__name__ = "replay"

    def __call__(self, state: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the operator; the generator is left as it is."""
        with DRAWS:
            present = generator_state(self.device)
            try:  # an interrupt can come behind the change as well
                set_generator_state(self.device, state)
                return self.target(*args, **kwargs)
            finally:
                set_generator_state(self.device, present)
