"""The page of a compression profile."""

from typing import TYPE_CHECKING

from headrace.compression.cli.show import marked_codec, profile_bucket_rows, profile_summary
from headrace.compression.profile import CompressionProfile
from headrace.compression.report.lines import LINE_DASHES
from headrace.report.page import Page, empty_figure

if TYPE_CHECKING:
    import plotly.graph_objects as go


def compression_profile_page(profile: CompressionProfile, source: str) -> Page:
    """Return the page of a profile, which was read from `source`."""
    page = Page(
        f"Step and codecs of {profile.model}, batch {profile.batch}",
        f"{source}: {profile.provenance['kind']}, {profile.provenance['source']}",
    )
    page.facts(profile_summary(profile))
    page.heading("Buckets")
    page.table(("bucket", "parameters", "bytes", "ready"), profile_bucket_rows(profile))
    page.heading("Codecs")
    page.note("Time to encode a gradient and to decode one payload of the same elements.")
    if profile.codecs:
        page.figure(_codecs(profile))
    return page


def _codecs(profile: CompressionProfile) -> "go.Figure":
    """Return the codecs' times over the elements, or beside each other where all have one size."""
    figure = empty_figure()
    timings = {marked_codec(name, profile): timing for name, timing in profile.codecs.items()}
    if all(len(timing.elements) == 1 for timing in timings.values()):
        for part, symbol in (("encode", "circle-open"), ("decode", "x-thin-open")):
            figure.add_scatter(
                x=list(timings),
                y=[getattr(timing, f"{part}_us")[0] / 1e3 for timing in timings.values()],
                mode="markers",
                name=part,
                marker={"symbol": symbol, "size": 10, "line": {"width": 2}},
            )
        sizes = sorted({timing.elements[0] for timing in timings.values()})
        figure.update_xaxes(title=f"codec, for {', '.join(f'{n:,}' for n in sizes)} elements")
        figure.update_yaxes(title="time, ms", type="log")
        return figure
    for index, (name, timing) in enumerate(timings.items()):
        both = [
            (encode + decode) / 1e3
            for encode, decode in zip(timing.encode_us, timing.decode_us, strict=True)
        ]
        figure.add_scatter(
            x=list(timing.elements),
            y=both,
            mode="lines+markers",
            name=name,
            line_dash=LINE_DASHES[index % len(LINE_DASHES)],
        )
    figure.update_xaxes(title="elements of the gradient", type="log")
    figure.update_yaxes(title="encode and decode, ms", type="log")
    return figure
