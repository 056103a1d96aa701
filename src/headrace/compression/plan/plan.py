"""The compression plan: predictions, with all that they were computed from."""

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.compression.errors import CompressionError
from headrace.compression.families import CodecSpec
from headrace.compression.plan.advice import Advice, AdviceRow, advise, known_codecs
from headrace.compression.plan.network import FormulaNetwork, NetworkTimes
from headrace.compression.policy import Policy
from headrace.compression.profile import CompressionProfile
from headrace.errors import ArtifactError, VerificationError
from headrace.fields import Field
from headrace.units import duration

_PAYLOAD = "sent_bytes"
"""Name of a row's payload in files."""

_CLOSE = 1e-5
"""Relative difference of figures that count as equal: break-even bandwidths are found to 1e-6."""


@stored_value("headrace.compression", CompressionError)
class RecordedNetwork:
    """Times of a plan book's collectives as they were when a plan was made.

    Attributes
    ----------
    book : the network's name; `digest`: of the book or topology.
    times : (collective, payload bytes) to us.
    """

    book: str
    workers: int
    bandwidth_bytes_per_s: float
    times: Mapping[tuple[str, int], float]

    def exchange_us(self, collective: str, payload_bytes: float) -> float:
        """Return the recorded time.

        Raises
        ------
        CompressionError : if there is none.
        """
        time_us = self.times.get((collective, round(payload_bytes)))
        if time_us is None:
            raise CompressionError(
                f"the plan has no time of {collective} with {round(payload_bytes)} bytes: make it "
                "again from the plan book"
            )
        return time_us

    def at_bandwidth(self, bytes_per_s: float) -> "RecordedNetwork":
        """Raise CompressionError: other bandwidths need the plan book."""
        raise CompressionError(
            f"no times are recorded for {bytes_per_s:g} bytes/s: make the plan again"
        )

    def describe(self) -> str:
        """Return the name of the book's network."""
        return f"plans for {self.book}"


class RecordingNetwork:
    """A network that records the times that it is asked for."""

    def __init__(self, network: NetworkTimes) -> None:
        self._network = network
        self.times: dict[tuple[str, int], float] = {}

    @property
    def workers(self) -> int:
        """The network's."""
        return self._network.workers

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """The network's."""
        return self._network.bandwidth_bytes_per_s

    def exchange_us(self, collective: str, payload_bytes: float) -> float:
        """Return the network's time, and keep it."""
        time_us = self._network.exchange_us(collective, payload_bytes)
        self.times[collective, round(payload_bytes)] = time_us
        return time_us

    def at_bandwidth(self, bytes_per_s: float) -> NetworkTimes:
        """Return the network at another bandwidth, which is not recorded."""
        return self._network.at_bandwidth(bytes_per_s)

    def describe(self) -> str:
        """Return the network's description."""
        return self._network.describe()


@stored_value("headrace.compression", CompressionError, repr=False)
class CompressionPlan(
    ArtifactValue, kind="compression-plan", schema=1, command="headrace compression plan"
):
    """Advice for a profile on a network, with both.

    Attributes
    ----------
    codecs : texts of those that were compared.
    memory_bytes : of the device; None: the profile's.
    """

    profile: CompressionProfile
    network: FormulaNetwork | RecordedNetwork
    codecs: tuple[str, ...]
    memory_bytes: int | None
    local_steps: int
    advice: Advice
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def description(self) -> str:
        """The model and device, the fastest codec, its step, and how many were compared."""
        winner = self.advice.winner
        return (
            f"{self.profile.model} on {self.profile.device}, {winner.codec} {winner.mode}, step "
            f"{duration(winner.step_us)} of {len(self.advice.rows)} compared"
        )

    @classmethod
    def make(
        cls,
        profile: CompressionProfile,
        network: NetworkTimes,
        *,
        codecs: tuple[CodecSpec, ...],
        memory_bytes: int | None,
        local_steps: int,
        provenance: Mapping[str, Any],
    ) -> "CompressionPlan":
        """Advise, and keep what the advice was computed from; see `advise`."""
        recorder, codecs = RecordingNetwork(network), codecs or tuple(known_codecs(profile))
        advice = advise(
            profile, recorder, codecs=codecs, memory_bytes=memory_bytes, local_steps=local_steps
        )
        if isinstance(network, FormulaNetwork):
            recorded = network
        else:
            recorded = RecordedNetwork(
                book=network.describe().removeprefix("plans for "),
                workers=network.workers,
                bandwidth_bytes_per_s=network.bandwidth_bytes_per_s,
                times=recorder.times,
            )
        return cls(
            profile=profile,
            network=recorded,
            codecs=tuple(map(str, codecs)),
            memory_bytes=memory_bytes,
            local_steps=local_steps,
            advice=advice,
            provenance=provenance,
        )

    def verify(self) -> None:
        """Compute all predictions again; break-even bandwidths only where a formula gives times.

        Raises
        ------
        VerificationError : naming the first figure that differs.
        """
        formula = isinstance(self.network, FormulaNetwork)
        again = advise(
            self.profile,
            self.network,
            codecs=[CodecSpec.parse(codec) for codec in self.codecs],
            memory_bytes=self.memory_bytes,
            local_steps=self.local_steps,
            break_evens=formula,
            policy=Policy(),
        )
        stored, computed = _advice_head(self.advice), _advice_head(again)
        for head in (stored, computed):
            del head["why"]  # a sentence of figures that are compared themselves
        if not formula:
            for head in (stored, computed):
                for row in (*head["rows"], head["winner"]):
                    row.pop("break_even_bytes_per_s")
        _compare(stored, computed, "advice")

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        if isinstance(self.network, FormulaNetwork):
            network = asdict(self.network)
        else:
            network = {
                "book": self.network.book,
                "workers": self.network.workers,
                "bandwidth_bytes_per_s": self.network.bandwidth_bytes_per_s,
                "times": [[kind, size, us] for (kind, size), us in self.network.times.items()],
            }
        head = {
            "profile": self.profile.to_head(),
            "origin": dict(self.profile.provenance),
            "network": network,
            "codecs": list(self.codecs),
            "memory_bytes": self.memory_bytes,
            "local_steps": self.local_steps,
            "advice": _advice_head(self.advice),
        }
        return head, {}

    @classmethod
    def from_artifact(
        cls, artifact: Artifact, source: str = "compression plan"
    ) -> "CompressionPlan":
        """Rebuild a plan; `verify` computes it again.

        Raises
        ------
        ArtifactError : naming the field, what was found and what is needed.
        """
        head = Field(artifact.head, source, ArtifactError)
        profile = Artifact(
            kind=CompressionProfile.KIND,
            schema=CompressionProfile.SCHEMA,
            head=head.at("profile").read(fields.table),
            provenance=head.at("origin").read(fields.table),
        )
        memory = head.at("memory_bytes")
        try:
            codecs = tuple(str(CodecSpec.parse(c.text())) for c in head.at("codecs").items())
            network = _network(head.at("network"))
        except CompressionError as error:
            raise ArtifactError(f"{source}: {error}") from error
        return cls(
            profile=CompressionProfile.from_artifact(profile, f"{source}: profile"),
            network=network,
            codecs=codecs,
            memory_bytes=None if memory.found is None else memory.integer(0, 1 << 50),
            local_steps=head.at("local_steps").integer(1, 1 << 20),
            advice=_advice(head.at("advice")),
            provenance=artifact.provenance,
        )


def _advice_head(advice: Advice) -> dict[str, Any]:
    head = asdict(advice)
    return {
        **head,
        "rows": [_row_head(row) for row in head["rows"]],
        "winner": _row_head(head["winner"]),
    }


def _row_head(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's fields as files name them, which call the payload "sent_bytes"."""
    return {_PAYLOAD if name == "payload_bytes" else name: value for name, value in row.items()}


def _network(network: Field) -> FormulaNetwork | RecordedNetwork:
    workers = network.at("workers").integer(2, 1 << 20)
    rate = network.at("bandwidth_bytes_per_s").read(fields.number)
    if "book" not in network.read(fields.table):
        return FormulaNetwork(
            scheme=network.at("scheme").text(),
            workers=workers,
            bandwidth_bytes_per_s=rate,
            alpha_us=network.at("alpha_us").read(fields.number),
            ranks_per_host=network.at("ranks_per_host").integer(1, 1 << 20),
        )
    return RecordedNetwork(
        book=network.at("book").text(),
        workers=workers,
        bandwidth_bytes_per_s=rate,
        times={
            (row.at(0).text(), row.at(1).integer(0, 1 << 50)): row.at(2).read(fields.number)
            for row in network.at("times").items()
        },
    )


def _advice(advice: Field) -> Advice:
    needed = advice.at("needed_compression")
    rows = tuple(_advice_row(row) for row in advice.at("rows").items())
    if not rows:
        raise advice.at("rows").wrong("one row at least")
    return Advice(
        rows=rows,
        winner=_advice_row(advice.at("winner")),
        alone_us=advice.at("alone_us").read(fields.number),
        needed_compression=None if needed.found is None else needed.read(fields.number),
        why=advice.at("why").text(),
    )


def _advice_row(row: Field) -> AdviceRow:
    even = row.at("break_even_bytes_per_s")
    times = ("step_us", "codec_us", "communication_us", "exposed_us")
    return AdviceRow(
        codec=row.at("codec").text(),
        mode=row.at("mode").text(),
        **{name: row.at(name).read(fields.number) for name in times},
        payload_bytes=row.at(_PAYLOAD).read(fields.number),
        memory_bytes=row.at("memory_bytes").integer(0, 1 << 50),
        fits=row.at("fits").read(fields.boolean),
        break_even_bytes_per_s=None if even.found is None else even.read(fields.number),
    )


def _compare(stored: Any, computed: Any, path: str) -> None:
    """Raise VerificationError unless two values are equal, numbers within rounding."""
    if isinstance(computed, dict):
        for name in computed:
            _compare(stored[name], computed[name], f"{path}.{name}")
    elif isinstance(computed, list):
        if len(stored) != len(computed):
            raise VerificationError(
                f"{path} has {len(stored)} rows, computed again {len(computed)}"
            )
        for index, (a, b) in enumerate(zip(stored, computed, strict=True)):
            _compare(a, b, f"{path}[{index}]")
    elif isinstance(computed, float) and isinstance(stored, float):
        if abs(stored - computed) > _CLOSE * max(abs(stored), abs(computed)):
            raise VerificationError(f"{path} is {stored!r}, computed again {computed!r}")
    elif stored != computed:
        raise VerificationError(f"{path} is {stored!r}, computed again {computed!r}")
