"""The page of a compression profile."""

from headrace.compression.cli.show import profile_bucket_rows, profile_summary
from headrace.compression.profile import CompressionProfile
from headrace.report.page import Page, empty_figure


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
    figure = empty_figure()
    for name, timing in profile.codecs.items():
        both = [
            (encode + decode) / 1e3
            for encode, decode in zip(timing.encode_us, timing.decode_us, strict=True)
        ]
        figure.add_scatter(x=list(timing.elements), y=both, mode="lines+markers", name=name)
    figure.update_xaxes(title="elements", type="log")
    figure.update_yaxes(title="encode and decode, ms", type="log")
    page.figure(figure)
    return page
