"""The page of a compression plan: its answer, and the what-if figures of the utility study."""

import statistics
from collections.abc import Mapping

from headrace.compression.cli.show import advice_summary, bandwidth_text, marked_codec
from headrace.compression.families import NONE, CodecSpec
from headrace.compression.plan.advice import row_accuracy, row_sent_bytes
from headrace.compression.plan.curves import (
    Curve,
    cost_against_compression,
    needed_by_bandwidth,
    speed_up_by_bandwidth,
    speed_up_by_compute,
)
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.plan import CompressionPlan
from headrace.compression.report.lines import LINE_DASHES
from headrace.report.page import Page, empty_figure
from headrace.units import size

_BASELINE = "powersgd:4"
"""Codec of the paper's what-if figures."""

_MOST_CURVES = 8
_CUT = 4
"""Medians of the steps at which the bars of slower ones are cut, or all others would be flat."""


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
    codecs = [CodecSpec.parse(codec) for codec in names[:_MOST_CURVES]]
    _bandwidths(
        page,
        plan.network,
        "Speed-up over bandwidth (as Figures 4.10 and 4.12)",
        "speed-up over no compression, times",
        {
            marked_codec(codec, profile): curve
            for codec, curve in speed_up_by_bandwidth(profile, codecs, plan.network).items()
        },
    )
    if len(names) > _MOST_CURVES:
        page.note(f"Of the {_MOST_CURVES} codecs that are fastest on this network.")
    _bandwidths(
        page,
        plan.network,
        "Compression for near-linear scaling (as Figures 4.8 and 4.11)",
        "needed compression, times",
        needed_by_bandwidth(profile, plan.network),
    )
    page.note(
        "Of an ideal codec that takes no time. The batch changes the time of compute in proportion."
    )
    _curves(
        page,
        f"Faster compute (as Figure 4.13): {name}",
        "compute and codec faster by, times",
        "speed-up over no compression, times",
        {name: speed_up_by_compute(profile, codec, plan.network)},
    )
    _curves(
        page,
        f"Encode time against compression (as Figure 4.14): {name}",
        "k, times: encode time divided by it, bytes multiplied by k^l",
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
            "accuracy",
        ),
        [
            (
                marked_codec(row.codec, plan.profile),
                row.mode,
                row.step_us / 1e3,
                row.exposed_us / 1e3,
                row.codec_us / 1e3,
                row.communication_us / 1e3,
                size(round(row_sent_bytes(row, plan.profile, plan.network.workers))),
                size(row.memory_bytes),
                "yes" if row.fits else "no",
                bandwidth_text(row.break_even_bytes_per_s),
                row_accuracy(row, plan.profile).text,
            )
            for row in advice.rows
        ],
        ["ok" if row == advice.winner else "" if row.fits else "short" for row in advice.rows],
    )
    figure = empty_figure()
    names = [f"{marked_codec(row.codec, plan.profile)}, {row.mode}" for row in advice.rows]
    figure.add_bar(x=names, y=[advice.alone_us / 1e3] * len(names), name="one worker")
    figure.add_bar(x=names, y=[row.exposed_us / 1e3 for row in advice.rows], name="longer by")
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="codec, and when it averages")
    figure.update_yaxes(title="step, ms")
    steps = [row.step_us / 1e3 for row in advice.rows]
    none = max(row.step_us / 1e3 for row in advice.rows if row.codec == str(NONE))
    most = max(_CUT * statistics.median(steps), 1.1 * none)
    if max(steps) > most:
        figure.update_yaxes(range=[0, most])
    page.figure(figure, 480)
    if max(steps) > most:
        page.note(f"Bars are cut at {most:,.0f} ms: the table has all.")


def _bandwidths(
    page: Page, network: FormulaNetwork, title: str, label: str, curves: Mapping[str, Curve]
) -> None:
    """Add curves over the bandwidth, with both axes logarithmic, and a mark at the network's."""
    page.heading(title)
    figure = empty_figure()
    here = network.bandwidth_bytes_per_s * 8 / 1e9
    for index, (name, (rates, values)) in enumerate(curves.items()):
        figure.add_scatter(
            x=[rate * 8 / 1e9 for rate in rates],
            y=values,
            mode="lines",
            name=name,
            line_dash=LINE_DASHES[index % len(LINE_DASHES)],
        )
    figure.add_vline(x=here, line_dash="dot")
    lowest = min((y for _, values in curves.values() for y in values if y is not None), default=1)
    if lowest <= 1:
        figure.add_hline(y=1, line_width=1)
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title=f"bandwidth, Gbit/s (dotted line: {here:g})", type="log")
    figure.update_yaxes(title=label, type="log", dtick="D2")
    page.figure(figure)


def _curves(page: Page, title: str, across: str, label: str, curves: Mapping[str, Curve]) -> None:
    page.heading(title)
    figure = empty_figure()
    for name, (places, values) in curves.items():
        figure.add_scatter(x=places, y=values, mode="lines+markers", name=name)
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title=across)
    figure.update_yaxes(title=label, rangemode="tozero")
    page.figure(figure)
