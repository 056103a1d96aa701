"""Cross-over bandwidths of PowerSGD and no compression, predicted, beside the paper's (4.2.5).

Nothing is measured here: the bundled profiles are from literature, and none of their figures is
fitted to a cross-over. The paper's clusters have 4 GPUs a host, at 10 Gbit/s.
"""

from dataclasses import replace

from benchmarks.harness import Report
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.models import bundled_profile
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.step import AFTER, DURING, step_time, step_work
from headrace.compression.plan.whatif import break_even
from headrace.compression.policy import Policy
from headrace.compression.profile import CompressionProfile
from headrace.compression.traffic import buffer_bytes

SECTION = "crossover"

PAPER_GBIT = {"resnet50": 9.0, "resnet101": 8.2, "bert-base": 15.0}
"""Cross-over bandwidths of PowerSGD rank 4 at 64 workers, batch 64 (BERT: 12), in Gbit/s."""

_BARS = {model: f"crossover-error-{model.removesuffix('-base')}" for model in PAPER_GBIT}
_GBIT = 1e9 / 8
_HOP_US = 50.0
_RANKS_PER_HOST = 4
_LATENCY_US = _HOP_US / _RANKS_PER_HOST
"""Half of a round trip of 100 us between hosts of EC2, on one of four hops of a ring."""

_PERCENTAGES = (
    ("4.2.2", "bert-base", 12, "powersgd:4", 18.8),
    ("4.2.2", "bert-base", 12, "powersgd:8", 11.3),
    ("4.2.3", "resnet101", 16, "powersgd:4", 42.5),
    ("4.2.3", "resnet101", 32, "powersgd:4", 25.7),
    ("4.2.3", "resnet101", 64, "powersgd:4", -6.3),
)
"""Section, model, batch, codec and the paper's gain over no compression at 96 workers, in %."""

_OUT_OF_MEMORY = (
    ("resnet101", "mstopk:1%", 16),
    ("bert-base", "mstopk:1%", 32),
    ("bert-base", "sign", 32),
)
"""Model, codec and the most workers that the paper's all-gather had memory for (4.2.2)."""


def bars() -> dict[str, str]:
    """Return the bars: relative errors of the predicted cross-overs."""
    return dict.fromkeys(_BARS.values(), "<= 0.25")


def measure(report: Report, *, quick: bool) -> None:
    """Predict the cross-overs, their sensitivity, and the percentages; quick has all of them."""
    del quick
    for model, paper in PAPER_GBIT.items():
        profile = bundled_profile(model)
        found = cross_over_gbit(profile)
        error = None if found is None else abs(found / paper - 1)
        report.row(
            "cross-over of powersgd:4 and none at 64 workers (predicted)",
            model=model,
            batch=profile.batch,
            paper_gbit_per_s=paper,
            predicted_gbit_per_s=found,
            relative_error=error,
        )
        report.bar(_BARS[model], error)
    for name, latency_us, gamma in (
        ("no latency", 0.0, 1.07),
        ("latency of every hop between hosts", _HOP_US, 1.07),
        ("gamma 1.04", _LATENCY_US, 1.04),
        ("gamma 1.10", _LATENCY_US, 1.10),
    ):
        rates = {
            model: cross_over_gbit(replace(bundled_profile(model), gamma=gamma), latency_us)
            for model in PAPER_GBIT
        }
        report.row("the same with other assumptions, Gbit/s (predicted)", assumption=name, **rates)
    for section, model, batch, codec, paper in _PERCENTAGES:
        faster, shorter = gains_percent(bundled_profile(model, batch), codec)
        report.row(
            "gain over no compression at 96 workers and 10 Gbit/s (predicted)",
            section=section,
            model=model,
            batch=batch,
            codec=codec,
            paper_percent=paper,
            steps_a_second_percent=faster,
            step_time_percent=shorter,
        )
    for model, codec, most in _OUT_OF_MEMORY:
        profile = bundled_profile(model)
        held = {
            f"mib_{workers}_workers": payload_bytes(profile, codec, workers) / (1 << 20)
            for workers in (most, 96)
        }
        report.row(
            "payloads of a rank that headrace would hold (predicted)",
            model=model,
            codec=codec,
            paper_ran_out_beyond=most,
            mib_at_paper_most=held[f"mib_{most}_workers"],
            mib_at_96=held["mib_96_workers"],
            mib_if_decoded_at_96=96 * profile.gradient_bytes / (1 << 20),
        )
    report.note(
        "cross-over: predicted, from literature: throughputs of NVIDIA's DeepLearningExamples and "
        "the paper's times of codecs on ResNet-50 (Table 4.1), in proportion to multiply-adds and "
        "elements; PowerSGD "
        f"runs after the backward pass, latency {_LATENCY_US:g} us a hop"
    )


def cross_over_gbit(profile: CompressionProfile, latency_us: float = _LATENCY_US) -> float | None:
    """Return the bandwidth at which PowerSGD of rank 4 is as fast as none at 64 workers."""
    network = _ring(64, latency_us)
    coded = step_work(profile, CodecSpec.parse("powersgd:4"), network.workers, AFTER)
    even = break_even(coded, step_work(profile, NONE, network.workers, DURING), network)
    return None if even is None else even / _GBIT


def gains_percent(profile: CompressionProfile, codec: str) -> tuple[float, float]:
    """Return by how much more steps a second a codec makes, and by how much a step is shorter.

    The text leaves open which its percentages are. At 96 workers.
    """
    network = _ring(96, _LATENCY_US)
    plain = step_work(profile, NONE, network.workers, DURING)
    coded = step_work(profile, CodecSpec.parse(codec), network.workers, AFTER)
    none, coding = (step_time(work, network).total_us for work in (plain, coded))
    return 100 * (none / coding - 1), 100 * (1 - coding / none)


def payload_bytes(profile: CompressionProfile, codec: str, workers: int) -> int:
    """Return the memory of payloads; residuals are as large as the gradients that are encoded."""
    spec = CodecSpec.parse(codec)
    return buffer_bytes(spec, coded_shapes(profile, spec), workers)


def coded_shapes(profile: CompressionProfile, spec: CodecSpec) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters that a codec compresses."""
    rules = Policy()
    return [t.shape for t in profile.tensors if rules.codec_of(t.name, t.shape, spec) == spec]


def _ring(workers: int, latency_us: float) -> FormulaNetwork:
    return FormulaNetwork(
        scheme="ring",
        workers=workers,
        bandwidth_bytes_per_s=10 * _GBIT,
        alpha_us=latency_us,
        ranks_per_host=_RANKS_PER_HOST,
    )
