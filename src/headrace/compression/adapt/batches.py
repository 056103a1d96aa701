"""Batch sizes that follow critical regimes: small in them, large elsewhere (3.2.3).

The learning rate scales with the batch (Goyal et al., 2017): a rate that is given for a batch of
128 becomes 0.1 * B / 128, after a warm-up of five epochs from the rate as given. Norms are of the
mean gradient of a step, so that a change of the batch alone does not change them.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from headrace.compression.adapt.accordion import CriticalRegimes
from headrace.compression.adapt.detector import Detector
from headrace.compression.adapt.schedule import SeenMark
from headrace.compression.errors import CompressionError
from headrace.compression.run.same import require_same
from headrace.job.records import Records

WARM_UP_EPOCHS = 5
"""Epochs in which the rate rises to that of the batch (3.3)."""


def scaled_rate(rate: float, batch: int, reference: int, epoch: int, warm_up: int) -> float:
    """Return the rate of a batch: linear in its size, and in the epochs of the warm-up.

    Parameters
    ----------
    rate : for a batch of `reference` samples.
    epoch : number of the epoch, from 0; from `warm_up` on the rate is rate * batch / reference.
    """
    multiple = batch / reference
    return rate * (1 + (multiple - 1) * min(1.0, epoch / warm_up) if warm_up else multiple)


class AccordionBatches(Sampler[list[int]]):
    """Batch sampler whose batches are small in critical regimes of the whole model, else large.

    It is given to a DataLoader as ``batch_sampler``, and sets the optimizer's learning rates.
    After each epoch, `epoch` is called on all ranks.

    Parameters
    ----------
    sampler : of this rank's samples, such as a DistributedSampler.
    optimizer : of the model; its rates when this is made, and those of groups that are added later
        when that epoch ends, are those for `reference` samples. Its steps are seen by a hook, which
        accumulates the first groups' gradients (averaged over the ranks) in the epochs for which
        that is needed.
    small, large : samples of a batch of all ranks together.
    decay : factor of the rates in each epoch, from 0 on (as of torch's LambdaLR); no other
        scheduler may change the optimizer's rates.
    regimes : when training is critical; its norms are those of the whole model.
    ranks : of the job; None: those of torch.distributed, if it is initialized, else one.

    Attributes
    ----------
    sampler : as given; trainers set its epoch by this name, which torch's batch samplers have.
    epochs : ended.

    Raises
    ------
    CompressionError : sizes that cannot be used, a window in steps, or a sharded model.
    """

    def __init__(
        self,
        sampler: Sampler[int],
        optimizer: torch.optim.Optimizer,
        *,
        small: int = 512,
        large: int = 4096,
        decay: Callable[[int], float] = lambda _: 1.0,
        regimes: CriticalRegimes | None = None,
        reference: int = 128,
        warm_up: int = WARM_UP_EPOCHS,
        ranks: int | None = None,
        records: Records | None = None,
    ) -> None:
        self._compared = dist.is_available() and dist.is_initialized()
        if ranks is None:
            ranks = dist.get_world_size() if self._compared else 1
        for name, size in (("small", small), ("large", large)):
            if size < ranks or size % ranks:
                raise CompressionError(f"{name} is {size}, needs a multiple of {ranks} ranks")
        if large < small:
            raise CompressionError(f"large is {large}, needs at least small, {small}")
        self.regimes = CriticalRegimes() if regimes is None else regimes
        if self.regimes.unit != "epochs":
            raise CompressionError("regimes has a window in steps, needs one in epochs")
        self.records = Records() if records is None else records
        self.sampler, self._optimizer, self._ranks = sampler, optimizer, ranks
        self._sizes, self._decay = (small, large), decay
        self._reference, self._warm_up = reference, warm_up
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(hasattr(parameter, "full_tensor") for parameter in parameters):
            raise CompressionError(
                "optimizer has parameters of a sharded model (DTensor), of whose gradients no rank "
                "has the norm: needs those of a DistributedDataParallel"
            )
        self._parameters = {str(number): p for number, p in enumerate(parameters)}
        self._detector = Detector({name: p.shape for name, p in self._parameters.items()})
        self._state = self.regimes.start(["model"])
        self.epochs = 0
        self._set_rates()
        optimizer.register_step_pre_hook(self._see)

    @property
    def batch(self) -> int:
        """Samples of a batch in this epoch, of all ranks together."""
        small, large = self._sizes
        return small if self._state["critical"]["model"] else large

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's part of each batch; samples that fill none are left out."""
        size = self.batch // self._ranks
        part: list[int] = []
        for index in self.sampler:
            part.append(index)
            if len(part) == size:
                yield part
                part = []

    def __len__(self) -> int:
        """Return the batches of this epoch."""
        return len(self.sampler) // (self.batch // self._ranks)  # pyright: ignore[reportArgumentType]

    def epoch(self) -> None:
        """End an epoch: decide on the next one's batch, and set its rates.

        Raises
        ------
        CommunicationError : the ranks' decisions differ.
        """
        self.epochs += 1
        before = self.batch
        norms = None
        if self.regimes.accumulate(self._state):
            layer_norms = torch.tensor(
                list(self._detector.norms().values()), dtype=torch.float64, device="cpu"
            )
            norms = {"model": float(layer_norms.norm())}
        # the schedule's own rates: those of a larger batch are no change of it
        rates = [rate * self._decay(self.epochs) for rate in self._base]
        seen = SeenMark(marks=self.epochs, rates=rates, norms=norms)
        self._state = self.regimes.decide(self._state, seen)
        if self._compared:
            require_same(
                {"epochs and batch sizes": (self.epochs, self.batch)},
                "All need the same model and learning rates.",
            )
        self._detector.reset()
        self._set_rates()
        if norms is not None or before != self.batch:
            self.records.add(
                "batch",
                mark=self.epochs,
                batch=self.batch,
                reason=self._state["reason"],
                norms=norms,
                rates=[float(group["lr"]) for group in self._optimizer.param_groups],
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, between two epochs or within one."""
        return {
            "state": self._state,
            "epochs": self.epochs,
            "base": self._base,
            "detector": self._detector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""
        self._state, self.epochs = state["state"], state["epochs"]
        self._base = list(state["base"])
        self._detector.load_state_dict(state["detector"])
        self._set_rates()

    def _set_rates(self) -> None:
        groups = self._optimizer.param_groups
        added = groups[len(self._base) :]
        self._base = [*self._base, *(float(group["lr"]) for group in added)]
        for group, base in zip(groups, self._base, strict=True):
            group["lr"] = scaled_rate(
                base * self._decay(self.epochs),
                self.batch,
                self._reference,
                self.epochs,
                self._warm_up,
            )

    def _see(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self.regimes.accumulate(self._state):
            return
        # a GradScaler has fused optimizers unscale gradients, and skip those that are not finite
        if getattr(optimizer, "found_inf", None):
            return
        scale = float(getattr(optimizer, "grad_scale", None) or 1.0)
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self._detector.add(name, parameter.grad, scale=scale)
