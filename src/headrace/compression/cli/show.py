"""Profiles and plans of compression as tables."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from headrace.artifact import Artifact
from headrace.cli.tables import facts, rows
from headrace.compression.plan.advice import (
    AdviceRow,
    fastest_gentle,
    line_to_write,
    row_accuracy,
    row_sent_bytes,
)
from headrace.compression.plan.plan import CompressionPlan
from headrace.compression.profile import CompressionProfile
from headrace.job.load import LOAD, load_text
from headrace.units import duration, ms, rate, size

DERIVED_MARK = "*"
"""Beside a codec whose times were not measured but derived."""

OTHER_PROGRAMS = (
    "the exchanges are headrace's own; other programs' differ, and so may the order of codecs: on "
    "8 GPUs at 1 Gbit/s TopK of 1% was measured ahead of PowerSGD and sign in another program, "
    "where this model has it behind both"
)


def profile_facts(profile: CompressionProfile, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a profile: its step, buckets and codecs."""
    yield facts("compression profile", dict(profile_summary(profile)), everything=everything)
    yield from rows(
        "buckets",
        ("bucket", "parameters", "bytes", "ready"),
        profile_bucket_rows(profile),
        everything=everything,
    )
    yield from rows(
        "codecs",
        ("name", "elements", "encode", "decode"),
        [
            (marked_codec(name, profile), elements, duration(encode), duration(decode))
            for name, timing in profile.codecs.items()
            for elements, encode, decode in zip(
                timing.elements, timing.encode_us, timing.decode_us, strict=True
            )
        ],
        everything=everything,
    )


def profile_summary(profile: CompressionProfile) -> list[tuple[str, str]]:
    """Return (label, value) rows of a profile."""
    memory = size(profile.memory_bytes) if profile.memory_bytes else "not known"
    origin = profile.provenance
    return [
        ("model", f"{profile.model}, batch {profile.batch}, on {profile.device}"),
        ("parameters", f"{profile.elements:,} in {len(profile.tensors)} tensors"),
        ("gradient", size(profile.gradient_bytes)),
        ("forward", duration(profile.forward_us)),
        ("backward", f"{duration(profile.backward_us)}, beside communication x {profile.gamma:g}"),
        ("rest of a step", duration(profile.other_us)),
        ("codecs", f"timed while {profile.ranks_per_host} ranks of a host encoded"),
        ("memory", f"{memory}, a step uses {size(profile.used_bytes)}"),
        *derived_summary(profile),
        *load_summary(profile),
        (str(origin["kind"]), str(origin["source"])),
    ]


def marked_codec(name: str, profile: CompressionProfile) -> str:
    """Return a codec's text, with a mark where the profile's times of it are derived."""
    return f"{name} {DERIVED_MARK}" if name in profile.derived else name


def derived_summary(profile: CompressionProfile) -> list[tuple[str, str]]:
    """Return the (label, value) row that explains the mark of `marked_codec`; none without it."""
    codecs: dict[str, list[str]] = {}
    for name, how in profile.derived.items():
        codecs.setdefault(how, []).append(name)
    text = "; ".join(f"{', '.join(names)}: {how}" for how, names in codecs.items())
    return [(f"{DERIVED_MARK} derived", text)] if text else []


def load_summary(profile: CompressionProfile) -> list[tuple[str, str]]:
    """Return the (label, value) row on how busy the machine was, if the profile has it."""
    origin = profile.provenance
    return [("machine", load_text(origin))] if LOAD in origin else []


def profile_bucket_rows(profile: CompressionProfile) -> list[tuple[int, int, str, str]]:
    """Return (bucket, parameters, bytes, readiness) of each bucket."""
    return [
        (
            index,
            bucket.tensors,
            size(sum(tensor.gradient_bytes for tensor in tensors)),
            duration(bucket.ready_us),
        )
        for index, (bucket, tensors) in enumerate(
            zip(profile.buckets, profile.bucket_tensors(), strict=True)
        )
    ]


def advice_tables(plan: CompressionPlan, everything: bool) -> Iterable[RenderableType]:
    """Return the tables of a plan: its answer, and every codec's step."""
    yield facts("compression plan", dict(advice_summary(plan)), everything=everything)
    yield from rows(
        "steps",
        ("name", "when", "step", "coding", "network", "sent", "break-even", "accuracy"),
        [
            (
                marked_codec(row.codec, plan.profile),
                row.mode if row.fits else f"{row.mode} (no memory)",
                ms(row.step_us),
                ms(row.codec_us),
                ms(row.communication_us),
                size(round(row_sent_bytes(row, plan.profile, plan.network.workers))),
                bandwidth_text(row.break_even_bytes_per_s),
                row_accuracy(row, plan.profile).text,
            )
            for row in plan.advice.rows
        ],
        everything=everything,
    )


def advice_summary(plan: CompressionPlan) -> list[tuple[str, str]]:
    """Return (label, value) rows of a plan."""
    profile, network, advice = plan.profile, plan.network, plan.advice
    winner, gentle = advice.winner, fastest_gentle(advice, profile)
    needed = advice.needed_compression
    assumed = plan.provenance.get("assumed_latency")
    return [
        ("model", f"{profile.model}, batch {profile.batch}, on {profile.device}"),
        (
            "network",
            f"{network.workers} workers at {bandwidth_text(network.bandwidth_bytes_per_s)}, "
            f"{network.describe()}",
        ),
        *([("latency", f"assumed: {assumed}")] if assumed else []),
        ("fastest", _answer(winner, profile)),
        ("write", line_to_write(winner)),
        ("fastest gentle", _answer(gentle, profile)),
        *([] if gentle == winner else [("write for that", line_to_write(gentle))]),
        ("one worker", ms(advice.alone_us)),
        (
            "for linear scaling",
            "none: the latency alone is too long" if needed is None else f"compress {needed:.3g}x",
        ),
        ("why", advice.why),
        ("elsewhere", OTHER_PROGRAMS),
        *derived_summary(profile),
        *load_summary(profile),
        (str(profile.provenance["kind"]), str(profile.provenance["source"])),
    ]


def _answer(row: AdviceRow, profile: CompressionProfile) -> str:
    accuracy = row_accuracy(row, profile).text
    codec = marked_codec(row.codec, profile)
    return f"{codec}, {row.mode} the backward pass: {ms(row.step_us)} ({accuracy})"


def bandwidth_text(bytes_per_s: float | None) -> str:
    """Return a bandwidth with its unit, or nothing for None."""
    return "" if bytes_per_s is None else rate(1e12 / bytes_per_s)


def verify_advice(artifact: Artifact, source: str) -> Iterator[str]:
    """Compute a plan's predictions again; raises VerificationError where they differ."""
    plan = CompressionPlan.from_artifact(artifact, source)
    plan.verify()
    yield (
        f"ok {artifact.digest[:12]} {plan.profile.model}: {plan.advice.winner.codec}, "
        f"{len(plan.advice.rows)} steps computed again"
    )
