"""Figures as SVG elements of a page: text stays text, colours follow the page's light and dark style."""

import contextlib
import html
import io
import re
from collections.abc import Iterator
from typing import Any

# stand for the page's colours until a figure is embedded: matplotlib knows no variables
INK = "#010203"
GOOD, BAD, OPEN, QUIET = "#010204", "#010205", "#010206", "#010207"
_PAGE_COLOURS = {
    INK: "currentColor",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    OPEN: "var(--open)",
    QUIET: "var(--quiet)",
}

WIDTH = 5.2  # inches; at this width text of 11 points is readable on a phone, which scales the figure to its screen


class Canvas:
    """What `canvas` yields: draw on ``figure``; after the block ``svg`` is the element."""

    figure: Any
    svg: str


@contextlib.contextmanager
def canvas(name: str, description: str, height: float) -> Iterator[Canvas]:
    """A figure whose ids begin with ``name``, unique in the page; ``description`` is for screen readers."""
    import matplotlib  # here, because it takes longer to load than everything else in the harness
    from matplotlib.figure import Figure

    options = {
        "svg.fonttype": "none",  # text stays text
        "svg.hashsalt": name,
        "text.parse_math": False,
        "font.family": ["DejaVu Sans"],
        "font.size": 12,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    }
    with matplotlib.rc_context(options):
        result = Canvas()
        result.figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield result
        buffer = io.StringIO()
        result.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    result.svg = _embeddable(buffer.getvalue(), name, description)


def _embeddable(svg: str, name: str, description: str) -> str:
    """The <svg> element alone, scaled by the page, in the page's colours, with ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'\s(?:width|height)="[\d.]+pt"', "", svg)
    svg = re.sub(r'(\sid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, page_colour in _PAGE_COLOURS.items():
        svg = svg.replace(colour, page_colour)
    return svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1)
