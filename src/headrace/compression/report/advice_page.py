"""The page of a compression plan: its answer, and the what-if figures of the utility study."""

from collections.abc import Mapping

from headrace.compression.cli.show import advice_summary, bandwidth_text
from headrace.compression.families import CodecSpec
from headrace.compression.plan.curves import (
    Curve,
    cost_against_compression,
    needed_by_bandwidth,
    speed_up_by_bandwidth,
    speed_up_by_compute,
)
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.plan import CompressionPlan
from headrace.report.page import Page, empty_figure
from headrace.units import size

_BASELINE = "powersgd:4"
"""Codec of the paper's what-if figures."""

_MOST_CURVES = 8


def advice_page(plan: CompressionPlan, source: str) -> Page:
    """Return the page of a plan, which was read from `source`."""
    profile, advice = plan.profile, plan.advice
    page = Page(
        f"Compression for {profile.model}, batch {profile.batch}, {plan.network.workers} workers",
        f"{source}: predicted from a profile that is {profile.provenance['kind']}.",
    )
    page.facts(advice_summary(plan))
    page.heading("Steps")
    _steps(page, plan)
    if not isinstance(plan.network, FormulaNetwork):
        page.note("Other bandwidths are left out: a plan book's times hold for its own network.")
        return page
    names = [row.codec for row in advice.rows if row.codec != "none"]
    if not names:
        return page
    name = _BASELINE if _BASELINE in names else names[0]
    codec = CodecSpec.parse(name)
    codecs = [CodecSpec.parse(each) for each in names[:_MOST_CURVES]]
    _bandwidths(
        page,
        plan.network,
        "Speed-up over bandwidth (as Figures 4.10 and 4.12)",
        "step without compression over step with it",
        speed_up_by_bandwidth(profile, codecs, plan.network),
    )
    _bandwidths(
        page,
        plan.network,
        "Compression for near-linear scaling (as Figures 4.8 and 4.11)",
        "needed compression",
        needed_by_bandwidth(profile, plan.network),
    )
    page.note(
        "Of an ideal codec that takes no time. The batch changes the time of compute in proportion."
    )
    _curves(
        page,
        f"Faster compute (as Figure 4.13): {name}",
        "compute and codec faster by",
        "speed-up",
        {name: speed_up_by_compute(profile, codec, plan.network)},
    )
    _curves(
        page,
        f"Encode time against compression (as Figure 4.14): {name}",
        "k: encode time divided by, bytes times k^l",
        "step, ms",
        cost_against_compression(profile, codec, plan.network),
    )
    return page


def _steps(page: Page, plan: CompressionPlan) -> None:
    advice = plan.advice
    page.table(
        (
            "codec",
            "when",
            "step, ms",
            "longer by, ms",
            "coding, ms",
            "network, ms",
            "sent",
            "memory",
            "fits",
            "break-even",
        ),
        [
            (
                row.codec,
                row.mode,
                row.step_us / 1e3,
                row.exposed_us / 1e3,
                row.codec_us / 1e3,
                row.communication_us / 1e3,
                size(round(row.sent_bytes)),
                size(row.memory_bytes),
                "yes" if row.fits else "no",
                bandwidth_text(row.break_even_bytes_per_s),
            )
            for row in advice.rows
        ],
        ["ok" if row == advice.winner else "" if row.fits else "short" for row in advice.rows],
    )
    figure = empty_figure()
    names = [f"{row.codec}, {row.mode}" for row in advice.rows]
    figure.add_bar(x=names, y=[advice.alone_us / 1e3] * len(names), name="one worker")
    figure.add_bar(x=names, y=[row.exposed_us / 1e3 for row in advice.rows], name="longer by")
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title="step, ms")
    page.figure(figure)


def _bandwidths(
    page: Page, network: FormulaNetwork, title: str, label: str, curves: Mapping[str, Curve]
) -> None:
    inner = {
        name: ([rate * 8 / 1e9 for rate in rates], values)
        for name, (rates, values) in curves.items()
    }
    page.heading(title)
    figure = empty_figure()
    for name, (rates, values) in inner.items():
        figure.add_scatter(x=rates, y=values, mode="lines", name=name)
    figure.add_vline(x=network.bandwidth_bytes_per_s * 8 / 1e9, line_dash="dot")
    figure.update_xaxes(title="bandwidth, Gbit/s", type="log")
    figure.update_yaxes(title=label)
    page.figure(figure)


def _curves(page: Page, title: str, across: str, label: str, curves: Mapping[str, Curve]) -> None:
    page.heading(title)
    figure = empty_figure()
    for name, (places, values) in curves.items():
        figure.add_scatter(x=places, y=values, mode="lines+markers", name=name)
    figure.update_xaxes(title=across)
    figure.update_yaxes(title=label)
    page.figure(figure)
