"""Charts of compression's pages: titled axes, ranges that fit the data, curves that differ."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from headrace.compression.cli.show import marked_codec
from headrace.compression.plan.models import MODELS, bundled_profile
from headrace.compression.plan.network import FormulaNetwork
from headrace.compression.plan.plan import CompressionPlan
from headrace.compression.profile import CodecTiming
from headrace.compression.report.advice_page import advice_page
from headrace.compression.report.profile_page import compression_profile_page
from tests.tiers import Sample

COLORS = 10  # of Plotly's default, in turn


def plan(model: str, bytes_per_s: float) -> CompressionPlan:
    network = FormulaNetwork(
        scheme="ring", workers=64, bandwidth_bytes_per_s=bytes_per_s, alpha_us=50.0
    )
    return CompressionPlan.make(
        bundled_profile(model), network, codecs=(), memory_bytes=None, local_steps=16, provenance={}
    )


def numbers(figure: dict[str, Any], axis: str) -> Iterator[float]:
    for trace in figure["data"]:
        values = trace[axis]
        if isinstance(values, dict):  # packed by Plotly
            raise AssertionError("figures are made of lists")
        yield from (value for value in values if isinstance(value, int | float))


def check(figure: dict[str, Any]) -> None:
    layout = figure["layout"]
    assert figure["data"]
    assert any(True for _ in numbers(figure, "y")), "an empty chart"
    for axis in ("x", "y"):
        style, values = layout[f"{axis}axis"], list(numbers(figure, axis))
        title = style["title"]["text"]
        if values:
            assert any(unit in title for unit in ("ms", "Gbit/s", "times", "elements")), title
        else:
            assert title.startswith("codec"), title
        if style.get("type") == "log":
            assert all(value > 0 for value in values), title
            # their places are logarithms, which what places them does not know: they stretch axes
            assert not layout.get("annotations")
            marks = [s[f"{axis}0"] for s in layout.get("shapes", []) if s[f"{axis}ref"] == axis]
            assert all(min(values) / 1.5 <= mark <= max(values) * 1.5 for mark in marks)
    names = [trace["name"] for trace in figure["data"]]
    assert len(set(names)) == len(names)
    lines = [
        (index % COLORS, trace.get("line", {}).get("dash"))
        for index, trace in enumerate(figure["data"])
    ]
    assert len(set(lines)) == len(lines), "two curves of one colour and dash"


def test_charts_of_a_plan_are_titled_and_of_sensible_ranges(
    figures: list[dict[str, Any]], sample: Sample
) -> None:
    for model, rate in sample.of(list(product(MODELS, (1.25e7, 1.25e9, 1.25e11))), 3):
        figures.clear()
        advice_page(plan(model, rate), "a.plan")
        assert len(figures) == 5
        for figure in figures:
            check(figure)
        steps = figures[0]
        tops = [sum(parts) for parts in zip(*(t["y"] for t in steps["data"]), strict=True)]
        shown = steps["layout"]["yaxis"].get("range", [0, max(tops)])[1]
        none = tops[steps["data"][0]["x"].index("none, during")]
        # no codec's long bar makes others flat; that of no compression is never cut
        assert none <= shown <= max(10 * sorted(tops)[len(tops) // 2], 1.2 * none)


def test_charts_of_a_profile_show_every_codec(figures: list[dict[str, Any]]) -> None:
    for model in MODELS:
        profile = bundled_profile(model)
        sizes = {
            name: CodecTiming(
                elements=(1000, timing.elements[0]),
                encode_us=(1.0, timing.encode_us[0]),
                decode_us=(1.0, timing.decode_us[0]),
            )
            for name, timing in profile.codecs.items()
        }
        figures.clear()
        compression_profile_page(profile, "a.profile")
        compression_profile_page(replace(profile, codecs=sizes), "a.profile")
        single, several = figures
        for figure in figures:
            check(figure)
        codecs = [marked_codec(name, profile) for name in profile.codecs]
        assert all(trace["x"] == codecs for trace in single["data"])
        assert [trace["name"] for trace in several["data"]] == codecs
        compression_profile_page(replace(profile, codecs={}), "a.profile")
        assert len(figures) == 2
