"""A plan: a proven program with its certificate and origin."""

from collections.abc import Mapping
from typing import Any

from headrace import fields
from headrace.artifact import Artifact, Table
from headrace.artifact_value import ArtifactValue, stored_value
from headrace.collectives.plan.bound import Bound
from headrace.collectives.plan.cost.model import MODELS, CostModel
from headrace.collectives.plan.verify import Proof, verify
from headrace.collectives.program import Program
from headrace.errors import ArtifactError, VerificationError
from headrace.topology import Topology
from headrace.units import duration, size

_FIELDS = ("maker", "total_bytes", "topology_digest", "model", "predicted_us", "bound")
_COLUMNS = ("maker", "chunks", "predicted_us", "note")


@stored_value("headrace.collectives", ArtifactError)
class Candidate:
    """Result of one row of the portfolio.

    Attributes
    ----------
    generator : its name.
    chunks : chunks per block; 0 if there is no schedule.
    predicted_us : simulated time; None if it was not simulated.
    note : reason for leaving it out, or empty.
    """

    generator: str
    chunks: int
    predicted_us: float | None = None
    note: str = ""


@stored_value("headrace.collectives", ArtifactError, eq=False, repr=False)
class Plan(ArtifactValue, kind="plan", schema=2, command="headrace collectives synthesize"):
    """One collective's program for one topology.

    Attributes
    ----------
    generator : name of the generator of `program`.
    total_bytes : size that it was scored at (see `Demand.chunk_bytes`); it runs at any.
    topology : the graph of the prediction and the bound.
    model : cost model of the prediction.
    predicted_us : simulated time at `total_bytes`.
    bound : lower bound on the time of all programs.
    proof : of `program`.
    candidates : results of the whole portfolio at `total_bytes`.
    why : what decided between the candidates, in words.

    Raises
    ------
    ArtifactError : if the proof is not this program's, or the bound not this topology's.
    """

    program: Program
    generator: str
    total_bytes: int
    topology: Topology
    model: CostModel
    predicted_us: float
    bound: Bound
    proof: Proof
    candidates: tuple[Candidate, ...] = ()
    why: str = ""

    def __post_init__(self) -> None:
        if (graph := self.topology.digest) != self.bound.topology_digest:
            raise ArtifactError(
                f"plan: field 'bound.topology_digest' is {self.bound.topology_digest[:12]}..., but "
                f"the topology's digest is {graph[:12]}...: plan for this topology again"
            )
        if (found := self.proof.digest_of(self.program)) != self.proof.program_digest:
            raise ArtifactError(
                f"plan: field 'proof.program_digest' is {self.proof.program_digest[:12]}..., but "
                f"the program's digest is {found[:12]}...: verify the program again"
            )

    @property
    def description(self) -> str:
        """The collective, its size and generator, the time predicted and the bound."""
        return (
            f"{self.program.demand.description}, {size(self.total_bytes)}, by {self.generator}, "
            f"{duration(self.predicted_us)} predicted, bound {duration(self.bound.total_us)}"
        )

    @property
    def topology_digest(self) -> str:
        """Digest of the graph of the prediction and the bound."""
        return self.bound.topology_digest

    @property
    def gap(self) -> float:
        """Optimality gap: relative excess of the prediction over the bound; 0.05 is 5%."""
        if self.bound.total_us == 0:
            return 0.0 if self.predicted_us == 0 else float("inf")
        return self.predicted_us / self.bound.total_us - 1

    def to_content(self) -> tuple[Mapping[str, Any], Mapping[str, Table]]:
        """Return the artifact's head and tables."""
        program, tables = self.program.to_content()
        head = {
            **self.certificate(),
            "topology": self.topology.to_head(),
            "program": program,
            "proof": self.proof.to_head(),
        }
        return head, tables

    def certificate(self) -> dict[str, Any]:
        """Return the JSON form without the topology, the program and its proof."""
        return {
            "maker": self.generator,
            "total_bytes": self.total_bytes,
            "topology_digest": self.topology_digest,
            "model": self.model.name,
            "predicted_us": self.predicted_us,
            "bound": self.bound.to_head(),
            "candidates": [
                [c.generator, c.chunks, c.predicted_us, c.note] for c in self.candidates
            ],
            "why": self.why,
        }

    @classmethod
    def from_certificate(
        cls,
        head: Mapping[str, Any],
        topology: Topology,
        program: Program,
        proof: Proof,
        source: str = "plan",
    ) -> "Plan":
        """Return the plan of a `certificate`; raises ArtifactError."""
        try:
            if (meant := fields.text(head["topology_digest"])) != topology.digest:
                raise ArtifactError(
                    f"{source}: field 'topology_digest' is {meant!r}, its topology's is "
                    f"{topology.digest!r}"
                )
            return cls(
                program=program,
                generator=fields.text(head["maker"]),
                total_bytes=fields.integer(head["total_bytes"]),
                topology=topology,
                model=_model(head["model"]),
                predicted_us=fields.number(head["predicted_us"]),
                bound=Bound.from_head(head["bound"], f"{source}: field 'bound'"),
                proof=proof,
                candidates=tuple(
                    Candidate(
                        generator=fields.text(generator),
                        chunks=fields.integer(chunks),
                        predicted_us=None if us is None else fields.number(us),
                        note=fields.text(note),
                    )
                    for generator, chunks, us, note in fields.items(head["candidates"])
                ),
                why=fields.text(head["why"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ArtifactError):
                raise
            raise ArtifactError(
                f"{source}: needs {', '.join(_FIELDS)}, candidates [{', '.join(_COLUMNS)}] and "
                f"why: {error!r}"
            ) from error

    @classmethod
    def from_artifact(cls, artifact: Artifact, source: str = "plan") -> "Plan":
        """Rebuild a plan and prove its program again, as files are not trusted.

        Raises
        ------
        ArtifactError, ProgramError : if a field is missing, or the proof is not the program's.
        VerificationError : if the program does not pass.
        """
        head = artifact.head
        for field in ("topology", "program", "proof"):
            if not isinstance(head.get(field), Mapping):
                raise ArtifactError(f"{source}: field '{field}' is missing or no object")
        program = Program.from_artifact(
            Artifact(
                kind=Program.KIND,
                schema=Program.SCHEMA,
                head=head["program"],
                tables=artifact.tables,
            ),
            f"{source}: program",
        )
        proof = proof_from(head["proof"], program, source)
        topology = Topology.from_head(head["topology"], f"{source}: field 'topology'")
        return cls.from_certificate(head, topology, program, proof, source)


def _model(name: Any) -> CostModel:
    if name not in MODELS:
        raise TypeError(f"model is {name!r}, needs one of {', '.join(MODELS)}")
    return MODELS[name]


def proof_from(head: Mapping[str, Any], program: Program, source: str = "plan") -> Proof:
    """Prove `program` again; `head` is the proof stored with it in a file.

    The stored proof only identifies the program: an altered program can be stored with a matching
    digest, so it is no evidence.

    Raises
    ------
    ArtifactError : if the stored proof is incomplete or names another program.
    VerificationError : if the program does not pass.
    """
    try:
        claimed = fields.text(head["program_digest"])
        fields.integer(head["verifier_version"])
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"{source}: field 'proof' needs program_digest and verifier_version: {error!r}"
        ) from error
    if claimed != (found := program.digest):
        raise ArtifactError(
            f"{source}: field 'proof.program_digest' is {claimed[:12]}..., but the program's "
            f"digest is {found[:12]}...: the file was altered; plan again"
        )
    try:
        return verify(program)
    except VerificationError as error:
        raise VerificationError(f"{source}: {error}") from error
