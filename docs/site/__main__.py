"""``python -m docs.site``: build the site; the exit code is 0 if nothing was to be warned of."""

import sys

from docs.site.build import build
from docs.site.root import ROOT

OUTPUT = ROOT / "build" / "docs"


def main() -> int:
    """Build the site, and print every warning and every link that leads nowhere."""
    site = build(OUTPUT)
    for problem in (*site.warnings, *site.broken_links):
        print(problem, file=sys.stderr)
    print(f"{site.pages} pages: {site.html / 'index.html'}")
    return 1 if site.warnings or site.broken_links else 0


if __name__ == "__main__":
    sys.exit(main())
