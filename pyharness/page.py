"""A page of HTML that needs no other file: facts, figures and tables; light and dark, on a screen and on a phone."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyharness.statistics import INCONCLUSIVE, INFERIOR, NON_INFERIOR
from pyharness.table import Column


def document(title: str, *parts: str) -> str:
    return _DOCUMENT.format(title=html.escape(title), style=_STYLE, parts="\n".join(parts))


def section(title: str, *parts: str) -> str:
    return "\n".join((f"<section>\n<h2>{html.escape(title)}</h2>", *parts, "</section>"))


def heading(text: str) -> str:
    """Within a section."""
    return f"<h3>{html.escape(text)}</h3>"


def details(summary: str, content: str) -> str:
    """Folded until it is asked for."""
    return f"<details><summary>{html.escape(summary)}</summary>\n{content}\n</details>"


def facts(entries: Mapping[str, Sequence[str]]) -> str:
    """Lines of text under each heading."""
    lines = "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{'<br>'.join(map(html.escape, lines)) or 'not recorded'}</dd>"
        for name, lines in entries.items()
    )
    return f'<dl class="facts">\n{lines}\n</dl>'


def caption(text: str) -> str:
    return f'<p class="caption">{html.escape(text)}</p>'


def raw(text: str) -> str:
    return f'<pre tabindex="0">{html.escape(text)}</pre>'


def figure(title: str, plot: str, note: str) -> str:
    return (
        f"<figure><figcaption><strong>{html.escape(title)}</strong><br>{html.escape(note)}</figcaption>{plot}</figure>"
    )


def figures(found: Iterable[str]) -> str:
    """Beside each other, where there is room."""
    return "\n".join(('<div class="figures">', *found, "</div>"))


def table(
    label: str, columns: Sequence[Column], rows: Iterable[Any], row_header: str, meanings: Mapping[str, str]
) -> str:
    """``label`` is for screen readers; ``row_header``: the column that names a row; ``meanings``: of columns."""
    head = "".join(_heading(column, meanings.get(column.header)) for column in columns)
    body = "\n".join(f"<tr>{''.join(_cell(column, row, row_header) for column in columns)}</tr>" for row in rows)
    return _TABLE.format(label=html.escape(label), head=head, body=body)


def _heading(column: Column, meaning: str | None) -> str:
    tooltip = f' title="{html.escape(meaning)}"' if meaning else ""
    return f'<th scope="col"{_number_class(column)}{tooltip}>{html.escape(column.header)}</th>'


def _cell(column: Column, row: Any, row_header: str) -> str:
    text = column.show(row)
    shown = html.escape(text)
    if column.header == row_header:
        return f'<th scope="row">{shown}</th>'
    if column.header == "verdict" and text in (NON_INFERIOR, INFERIOR, INCONCLUSIVE):
        return f'<td><span class="verdict {text.lower()}">{shown}</span></td>'
    return f"<td{_number_class(column)}>{shown}</td>"


def _number_class(column: Column) -> str:
    return ' class="number"' if column.numeric else ""


# --- templates ---

_DOCUMENT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{parts}
</main>
</body>
</html>
"""

_TABLE = """<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table></div>"""

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --soft: #f3f4f6; --line: #d0d5dc;
        --quiet: #57606a; --good: #11632c; --bad: #a40e26; --open: #7a4b00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --paper: #14171b; --soft: #1f242a; --line: #3a424c;
          --quiet: #a4adb8; --good: #6fdc8c; --bad: #ff8f9c; --open: #f0bf5a; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 84rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3, dd, summary { overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1rem; margin: 1rem 0; }
.facts dt { color: var(--quiet); }
.facts dd { margin: 0; }
.figures { columns: 24rem; column-gap: 1.5rem; margin: 1rem 0; }
figure { break-inside: avoid; margin: 0 0 1.5rem; max-width: 36rem; }
figcaption { margin-bottom: .5rem; font-size: .875rem; overflow-wrap: anywhere; }
figure svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; white-space: nowrap; }
th, td { padding: .3rem; border-bottom: 1px solid var(--line); text-align: left; }
thead th { background: var(--soft); }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--paper); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { font-weight: 600; }
.non-inferior { color: var(--good); }
.inferior { color: var(--bad); }
.inconclusive { color: var(--open); }
.caption { color: var(--quiet); font-size: .875rem; overflow-wrap: anywhere; }
details { margin: 1.5rem 0; }
pre { background: var(--soft); padding: 1rem; overflow-x: auto; font-size: .8125rem; }
"""
