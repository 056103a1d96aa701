"""Mean gradients among ranks: the codec of each parameter, its residual and its state.

An `Averager` is one rank's part. It makes the exchanges of a step as generators and leaves their
execution to others: a process group (`headrace.compression.run.exchanger`), or ranks that are
objects of one process (`headrace.compression.codecs.requests.run_together`)::

    for generator_list in (averager.add(gradients, last=True), averager.finish()):
        run(generator_list)   # on all ranks: round by round, in the order of the list

Everything is kept by parameter name, on the gradient's device, and each parameter is encoded by
itself, so that neither the order nor the size of buckets has an effect. Nor has the memory format:
codecs, residuals and states are in a parameter's logical order (row by row), whatever its strides.
A gradient of other strides is encoded from a copy; casts and uncompressed averages work element by
element, and need none.

A step is atomic: residuals and states change in `finish` alone, when the exchanges are complete
and the gradients of all ranks are known to be finite. Until then the sum of gradient and residual
is in the gradient's memory and the residual's is untouched; the codec then writes the mean over the
residual, and the two are exchanged block by block. So no copy of a gradient is needed.

Codecs compute in float32. A gradient of 16 bits is encoded from a copy in float32, and what of the
mean is rounded off when it is written back is left in the residual of every rank. Where its own
type is what is sent (no codec, or a cast to this type), it is summed as it is.
"""

import itertools
import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.compression.bounds import check_feedback
from headrace.compression.codecs.codec import Codec, State
from headrace.compression.codecs.requests import (
    AllReduce,
    Context,
    Exchanges,
    lockstep,
    requested,
)
from headrace.compression.codecs.table import make_codec
from headrace.compression.codecs.wire import WIRE_TYPES
from headrace.compression.encoding import PIECE, Encoding, rounds_of, until_last
from headrace.compression.errors import CompressionError
from headrace.compression.families import FAMILIES, NONE, CodecSpec, codec_spec
from headrace.compression.finite import all_finite
from headrace.compression.memory_layout import flat, joined_runs
from headrace.compression.names import parameter_named
from headrace.compression.policy import Policy, matrix_shape
from headrace.compression.saved_states import averaged_states, choose_states, copies, weighted_sum
from headrace.staging import download

Gradients = Sequence[tuple[str, Tensor]]
"""Gradients by parameter name, which are overwritten with their means."""


def check_start(start_after: int) -> None:
    """Raise CompressionError unless this is a number of steps."""
    if isinstance(start_after, bool) or not isinstance(start_after, int) or start_after < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CompressionError(f"start_after is {start_after!r}, needs a number of steps")


class Averager:
    """One rank's part in averaging gradients.

    Parameters
    ----------
    policy : codec of each parameter; a codec's text stands for a policy of this codec.
    shapes : of all parameters, by name.
    rank, ranks : of the group.
    seed : of codecs that use random numbers; equal on all ranks.
    start_after : number of first steps whose gradients are averaged uncompressed.

    Attributes
    ----------
    step : number of steps begun; equal on all ranks.
    finite : whether the last step's gradients were finite on all ranks. If not, the means are NaN,
        and residuals and states are as before it.
    torn : names of the parameters whose residuals moved on in a step that failed after it had been
        exchanged (a payload was refused, or codecs with different numbers of exchanges are mixed);
        all others are as before the step.
    policy_text : by which a saved state names what its codecs follow: the policy, or a schedule.

    Raises
    ------
    CompressionError : no such codec, policy or rank.
    """

    def __init__(
        self,
        policy: Policy | CodecSpec | str,
        shapes: Mapping[str, Sequence[int]],
        *,
        rank: int,
        ranks: int,
        seed: int = 0,
        start_after: int = 0,
    ) -> None:
        if not 0 <= rank < ranks:
            raise CompressionError(f"rank is {rank}, needs 0 to {ranks - 1}")
        check_start(start_after)
        self.policy = policy if isinstance(policy, Policy) else Policy(codec=policy)
        self.rank, self.ranks, self.seed = rank, ranks, seed
        self.start_after = start_after
        self.policy_text = repr(self.policy)
        self._residual_type = WIRE_TYPES[self.policy.residuals]
        self.step = 0
        self.finite = True
        self.torn: tuple[str, ...] = ()
        self._shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._codecs = {name: self.policy.codec_of(name, s) for name, s in self._shapes.items()}
        self._made: dict[CodecSpec, Codec] = {}
        for spec in {codec_spec(self.policy.codec), *self._codecs.values()}:
            self.check_codec(spec)
        self._residuals: dict[str, Tensor] = {}
        self._states: dict[str, dict[str, list[State]]] = {}
        self._open = False
        self._jobs: list[Encoding] = []
        self._done: list[str] = []
        self._plain: list[Tensor] = []
        self._spent: dict[str, Tensor] = {}  # gradients that residuals went out with in this step
        # summed over the ranks: values that are not finite; then, of each parameter, its users
        self._flags: Tensor = torch.zeros(1, dtype=torch.float32, device="cpu")

    # ---- a step ----------------------------------------------------------------------------

    def add(
        self, gradients: Gradients, *, last: bool = True, unused: Collection[str] | None = None
    ) -> list[Exchanges]:
        """Return the exchanges of some gradients of a step, to be run together.

        Parameters
        ----------
        gradients : a bucket's, or all. They hold intermediate values until `finish`.
        last : whether they are the step's last ones: tells all ranks whether the step is finite.
        unused : names of the parameters that this rank's step did not use, given with the last
            ones; None, on all ranks or none: each was used. One that no rank used gets zeros, and
            its residual and states stay: DistributedDataParallel drops the mean that it gets.

        Raises
        ------
        CompressionError : an unknown name, or another shape.
        """
        if not self._open:
            self._begin(gradients)
        coded: list[tuple[str, Tensor]] = []
        plain: list[Tensor] = []
        merged: dict[CodecSpec, list[Tensor]] = {}
        for name, gradient in gradients:
            if self._shapes.get(name) != tuple(gradient.shape):
                raise CompressionError(
                    f"gradient {name!r} has shape {tuple(gradient.shape)}, "
                    f"needs {self._shapes.get(name, 'the name of a parameter')}"
                )
            spec = NONE if self.step <= self.start_after else self._codecs[name]
            if self._is_sent_as_is(spec, gradient.dtype):
                self._spend(name, gradient)
                plain.append(flat(gradient))
            elif _keeps_nothing(spec) and not self.policy.feeds_back(spec):
                self._spend(name, gradient)
                merged.setdefault(spec, []).append(flat(gradient))
            else:
                coded.append((name, gradient))
        exchanges: list[Exchanges] = [_sum_of(run, self.ranks) for run in self._runs(plain)]
        for spec, vectors in merged.items():
            for number, run in enumerate(joined_runs(vectors)):
                job = self._job(f"{spec} {number}", run, run, spec)
                self._plain.append(run)  # finite or not, with the uncompressed ones
                self._jobs.append(job)
                exchanges += job.generators
        for name, gradient in coded:
            job = self._coded(name, gradient)
            exchanges += [until_last(generator, job.rounds) for generator in job.generators]
        if last:
            if unused is not None:
                uses = [float(name not in unused) for name in self._shapes]
                self._flags = torch.cat([self._flags, self._flags.new_tensor(uses)])
            exchanges.append(requested(AllReduce(self._flags)))
        return exchanges

    def finish(self) -> list[Exchanges]:
        """Return the step's last exchanges, when all those of `add` are complete.

        When it has been run, the gradients are the means, and residuals and states the next step's.
        The generators make no exchanges but those of codecs that have several.
        """
        coded = [job for job in self._jobs if job.states]
        if coded or self._spent:  # else nothing is kept that the step could change
            fine = torch.stack([self._flags[0] == 0, *map(all_finite, self._plain)])
            flags = download(torch.cat([fine, self._flags[1:] > 0]))
            self.finite = bool(flags[: len(fine)].all())
            if self.finite:
                self._leave_out(flags[len(fine) :].tolist())
        if not self.finite:
            for job in coded:
                job.leave(torch.nan)
            for accumulated in self._accumulated():  # what an overflow in an earlier step has left
                accumulated.nan_to_num_(nan=0, posinf=0, neginf=0)
            self._close()
            return []
        for name in self._spent:
            self._residuals.pop(name, None)
        exchanges = [self._complete(job) for job in self._jobs if job.states]
        if not exchanges:
            self._close()
        return exchanges

    def average(self, gradients: Gradients) -> Exchanges:
        """Average the gradients of a whole step; for `run_together`.

        As `add` and `finish`; a generator that is closed or fails undoes the step (`abort`).
        """
        try:
            yield from lockstep(self.add(gradients, last=True))
            yield from lockstep(self.finish())
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Give up a step that failed: residuals and states are those before it; see `torn`."""
        pending = {job.name for job in self._jobs if job.states} - set(self._done)
        if self._open and pending:
            self.torn = tuple(self._done)
        for job in self._jobs:
            for generator in job.generators:
                generator.close()
        self._close()

    # ---- what is kept ----------------------------------------------------------------------

    @property
    def shapes(self) -> Mapping[str, Sequence[int]]:
        """Shape of each parameter."""
        return self._shapes

    @property
    def codecs(self) -> Mapping[str, CodecSpec]:
        """Codec of each parameter."""
        return self._codecs

    def is_plain(self, types: Mapping[str, torch.dtype]) -> bool:
        """Return whether the next step sums all gradients as they are and changes nothing kept.

        Parameters
        ----------
        types : of the gradients, by name.
        """
        if self._residuals:
            return False
        if self.step < self.start_after:
            return True
        return all(self._is_sent_as_is(spec, types[name]) for name, spec in self._codecs.items())

    def set_codec(self, name: str | None, codec: CodecSpec | str) -> None:
        """Use another codec from the next step on; called on all ranks between the same steps.

        Residuals are kept: a codec without feedback sends them with its first gradient. So are
        warm starts, which codecs of one family share. The momentum of ``dgc`` begins anew with the
        gradient of the first step after another family's.

        Parameters
        ----------
        name : of a parameter, with or without DistributedDataParallel's ``module.``; None: all.
            Those that the policy leaves alone stay as they are.

        Raises
        ------
        CompressionError : no such codec or parameter.
        """
        spec = codec_spec(codec)
        self.check_codec(spec)
        parameters = list(self._shapes) if name is None else [parameter_named(name, self._shapes)]
        if self._open:
            raise CompressionError("set_codec was called in a step, needs the time between steps")
        for parameter in parameters:
            self._switch(parameter, self.policy.codec_of(parameter, self._shapes[parameter], spec))

    def admit(self, name: str, shape: Sequence[int]) -> None:
        """Take one more parameter, by the policy's codec; on all ranks in the same step."""
        if name not in self._shapes:
            codec = self.policy.codec_of(name, shape)
            self._codec(codec)
            self._shapes[name], self._codecs[name] = tuple(shape), codec

    def check_codec(self, codec: CodecSpec | str) -> None:
        """Raise CompressionError unless the codec can be used for all parameters.

        With feedback it has to be a contraction (`headrace.compression.bounds`), or residuals grow
        without bound.
        """
        spec = codec_spec(codec)
        self._codec(spec)
        for name, shape in self._shapes.items():
            self._check_feedback(name, self.policy.codec_of(name, shape, spec))

    def rescale(self, factor: float) -> None:
        """Multiply all residuals by `factor`, as the scale of the gradients changes by it.

        So are the states of vector codecs, which are sums of gradients; matrix codecs keep
        directions.
        """
        if factor == 1:
            return
        for accumulated in self._accumulated():
            accumulated.mul_(factor)

    def residual(self, name: str) -> Tensor:
        """Return a parameter's residual, a copy in float32; names are as of `set_codec`.

        Raises
        ------
        CompressionError : no such parameter.
        """
        name = parameter_named(name, self._shapes)
        residual = self._residuals.get(name)
        shape = self._shapes[name]
        if residual is None:
            return torch.zeros(shape, dtype=torch.float32, device="cpu")
        return residual.to(torch.float32, copy=True).view(shape)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state by parameter name: tensors are not copied.

        To be saved by every rank, as residuals are different on each.
        """
        names = sorted({*self._residuals, *self._states})
        return {
            "rank": self.rank,
            "ranks": self.ranks,
            "step": self.step,
            "torn": list(self.torn),
            "policy": self.policy_text,
            "codecs": {name: str(spec) for name, spec in self._codecs.items()},
            "parameters": {
                name: {
                    "residual": self._shaped(name),
                    "states": self._states.get(name, {}),
                }
                for name in names
            },
        }

    def reason_against(self, state: Mapping[str, Any]) -> str:
        """Return why a saved state's codecs are not those to go on with; "": they are.

        They are another policy's. A state of an earlier version has no policy's text: its codecs
        are refused where this policy leaves the parameter alone, or its residual could grow.
        """
        remedy = "; residuals are kept, codecs are this hook's"
        if "policy" in state:
            text = state["policy"]
            if text == self.policy_text:
                return ""
            return f"the saved state is of {text}, this hook of {self.policy_text}{remedy}"
        for name, text in state.get("codecs", {}).items():
            spec, shape = CodecSpec.parse(text), self._shapes.get(name)
            if shape is None:
                continue  # loading names it
            if self.policy.codec_of(name, shape, spec) != spec:
                return (
                    f"the saved state has codec {spec} for parameter {name!r}, which "
                    f"{self.policy_text} leaves alone{remedy}"
                )
            try:
                self._check_feedback(name, spec)
            except CompressionError as error:
                return f"the saved state has another policy: {error}{remedy}"
        return ""

    def load_state_dict(
        self,
        states: "Mapping[str, Any] | Sequence[Mapping[str, Any]]",
        *,
        codecs: bool = True,
    ) -> None:
        """Continue from saved states.

        Parameters
        ----------
        states : this rank's own, if the group has as many ranks as when it was saved; else those
            of all ranks. Residuals are then averages of the old ones (`residual_weights`), so that
            their mean over the ranks, which is what training still has to receive, is the same;
            so is the momentum of ``dgc``. The warm start is that of the old rank that is this one
            modulo the old number. A parameter that they lack, as it was frozen, begins anew.
        codecs : take the saved codecs; else the codecs in force take over residuals and warm
            starts, as by `set_codec`. See `reason_against`.

        Raises
        ------
        CompressionError : states are missing, or of other parameters.
        """
        sources, model = choose_states(states, rank=self.rank, ranks=self.ranks)
        for state in [*(source for _, source in sources), model]:
            self._check(state)
        residuals: dict[str, list[tuple[float, Tensor]]] = {}
        for weight, source in sources:
            for name, entry in source["parameters"].items():
                if entry["residual"] is not None:
                    residuals.setdefault(name, []).append((weight, entry["residual"].reshape(-1)))
        self._residuals = {
            name: weighted_sum(parts).to(self._residual_type) for name, parts in residuals.items()
        }
        self._states = {}
        for name in self._shapes:
            entry = model["parameters"].get(name, {"states": {}})
            states_by_family = {
                f: copies(s) for f, s in entry["states"].items() if FAMILIES[f].matrices
            }
            if states_by_family := states_by_family | averaged_states(name, sources):
                self._states[name] = states_by_family
        own_codecs = self._codecs
        saved_codecs = {n: CodecSpec.parse(text) for n, text in model["codecs"].items()}
        self._codecs = own_codecs | saved_codecs
        for name, spec in () if codecs else own_codecs.items():
            self._switch(name, spec)
        self.step, self.torn = int(model["step"]), tuple(model.get("torn", ()))

    # ---- parts -----------------------------------------------------------------------------

    def _accumulated(self) -> Iterator[Tensor]:
        """Yield what is kept of gradients: residuals, and the states of vector codecs."""
        yield from self._residuals.values()
        for states in self._states.values():
            vectors = (pieces for family, pieces in states.items() if not FAMILIES[family].matrices)
            for state in itertools.chain.from_iterable(vectors):
                yield from (value for value in state.values() if isinstance(value, Tensor))

    def _check_feedback(self, name: str, spec: CodecSpec) -> None:
        """Raise CompressionError if a parameter's residual could grow without bound."""
        shape = self._shapes[name]
        pieces = shape if spec.traits.matrices else (min(math.prod(shape), PIECE),)
        check_feedback(self.policy, spec, name, pieces)

    def _switch(self, name: str, spec: CodecSpec) -> None:
        """Give a parameter another codec, and keep what that can go on with."""
        family_before, self._codecs[name] = self._codecs[name].family, spec
        if spec.family != family_before and name in self._states:
            states = self._states[name].items()
            self._states[name] = {f: s for f, s in states if FAMILIES[f].matrices}

    def _begin(self, gradients: Gradients) -> None:
        self._open, self.finite = True, True
        self.step += 1
        device = gradients[0][1].device if gradients else None
        self._flags = torch.zeros(1, dtype=torch.float32, device=device)

    def _close(self) -> None:
        self._open = False
        self._jobs, self._done, self._plain, self._spent = [], [], [], {}

    def _leave_out(self, uses: Sequence[bool]) -> None:
        """Leave what is kept of parameters that no rank used as it was before the step.

        Parameters
        ----------
        uses : whether a rank used it, of each parameter; empty: all are used.
        """
        unused = {name for name, use in zip(self._shapes, uses, strict=False) if not use}
        for job in self._jobs:
            if job.name in unused:
                job.leave(0.0)
        self._jobs = [job for job in self._jobs if job.name not in unused]
        for name in unused & self._spent.keys():
            self._spent.pop(name).zero_()

    def _codec(self, spec: CodecSpec) -> Codec:
        if spec not in self._made:
            self._made[spec] = make_codec(spec)
        return self._made[spec]

    def _is_sent_as_is(self, spec: CodecSpec, gradient_type: torch.dtype) -> bool:
        """Return whether gradients of a type are summed as they are."""
        if spec.family == "none":
            return True
        sent_type = WIRE_TYPES.get(spec.family)
        return sent_type is gradient_type and not self.policy.feeds_back(spec)

    def _spend(self, name: str, gradient: Tensor) -> None:
        """Add a residual that is left from another codec to a gradient that is sent in whole."""
        residual = self._residual_on(name, gradient.device)
        if residual is not None:
            gradient.add_(residual.view(gradient.shape))
            self._spent[name] = gradient

    def _runs(self, plain: Sequence[Tensor]) -> list[Tensor]:
        runs = joined_runs(plain)
        self._plain += runs
        return runs

    def _coded(self, name: str, gradient: Tensor) -> Encoding:
        """Return the job of a parameter that keeps something from step to step."""
        spec = self._codecs[name]
        vector = gradient.contiguous().view(-1).to(torch.float32)
        feeds = self.policy.feeds_back(spec)
        residual = self._residual_on(name, vector.device)
        if residual is not None:
            vector.add_(residual)
            if not feeds:
                self._spent[name] = gradient
        elif feeds:
            residual = torch.zeros_like(vector, dtype=self._residual_type)
            self._residuals[name] = residual
        finite = all_finite(vector)  # with the residual, as their sum may overflow
        if not vector.is_cpu or not finite:  # a device's flag is not waited for
            self._flags.masked_fill_(~finite, 1.0)
            vector.masked_fill_(~finite, 0.0)  # so that ranks make the same exchanges in any case
        mean = residual.to(torch.float32) if feeds and residual is not None else vector
        states = self._states.get(name, {}).get(spec.family)
        job = self._job(name, gradient, vector, spec, mean, states)
        self._jobs.append(job)
        return job

    def _job(
        self,
        name: str,
        gradient: Tensor,
        sums: Tensor,
        spec: CodecSpec,
        mean: Tensor | None = None,
        states: Sequence[State] | None = None,
    ) -> Encoding:
        """Return the encoding of a vector: as a matrix, or in pieces."""
        mean = sums if mean is None else mean
        keeps = not _keeps_nothing(spec) or mean is not sums
        if spec.traits.matrices:
            shape = matrix_shape(self._shapes[name])
            pairs = [(sums.view(shape), mean.view(shape))]
        else:
            pairs = list(zip(sums.split(PIECE), mean.split(PIECE), strict=True))
        current = copies(states, sums.device) if states else [State() for _ in pairs]
        codec = self._codec(spec)
        generators: list[Exchanges] = []
        for number, ((given, result), state) in enumerate(zip(pairs, current, strict=True)):
            context = Context(
                rank=self.rank,
                ranks=self.ranks,
                step=self.step,
                seed=zlib.crc32(f"{self.seed} {number} {name}".encode()),
                feedback=mean is not sums,
            )
            generators.append(codec.average([given], [result], [state], context))
        return Encoding(
            name=name,
            family=spec.family,
            gradient=gradient,
            sums=sums,
            mean=mean,
            rounds=rounds_of(spec, pairs[0][0].shape, self.ranks),
            generators=generators,
            states=current if keeps else [],
        )

    def _complete(self, job: Encoding) -> Exchanges:
        """Run a job's codec to its end, and keep what it leaves."""
        yield from lockstep(job.generators)
        if any(job.states):
            self._states.setdefault(job.name, {})[job.family] = job.states
        residual = job.deliver(self._residual_type)
        if residual is not None:
            self._residuals[job.name] = residual
        self._done.append(job.name)
        if len(self._done) == sum(bool(job.states) for job in self._jobs):
            self._close()

    def _residual_on(self, name: str, device: torch.device) -> Tensor | None:
        """Return a parameter's residual, moved to a device if it was loaded elsewhere."""
        residual = self._residuals.get(name)
        if residual is not None and residual.device != device:
            residual = self._residuals[name] = residual.to(device)
        return residual

    def _shaped(self, name: str) -> Tensor | None:
        residual = self._residuals.get(name)
        return None if residual is None else residual.view(self._shapes[name])

    def _check(self, state: Mapping[str, Any]) -> None:
        if not {"codecs", "parameters"} <= {*state}:
            raise CompressionError("state is not a hook's, needs what its state_dict() returned")
        for name, text in state["codecs"].items():
            if name not in self._shapes:
                raise CompressionError(f"state has parameter {name!r}, the model has not")
            self._codec(CodecSpec.parse(text))
        for name, saved in state["parameters"].items():
            shape = None if saved["residual"] is None else tuple(saved["residual"].shape)
            if shape not in (None, self._shapes[name]):
                raise CompressionError(
                    f"residual of {name!r} has shape {shape}, needs {self._shapes[name]}"
                )


def _keeps_nothing(spec: CodecSpec) -> bool:
    """Return whether a codec rounds element by element, so that any run can be encoded at once."""
    return spec.family in ("bf16", "fp16")


def _sum_of(vector: Tensor, ranks: int) -> Exchanges:
    """Average uncompressed: divided first, as DDP does, so that the sum does not overflow."""
    yield [AllReduce(vector.div_(ranks))]
