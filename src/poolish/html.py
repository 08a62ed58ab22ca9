"""Escaped HTML and SVG for reprs and reports.

Only what is ``Html`` is markup; everything else is text and is escaped wherever it lands. So a hostile column name or
value shows as what it is, in a notebook as in a report. Tags come from a list, and none of them can run anything.

Styles are inline, colours inherited or half transparent: one output looks right on light and on dark pages, and cannot
change the page around it. SVG is drawn by hand because every plotting library weighs megabytes in each page.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from numbers import Integral, Number
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["ACCENT", "Html", "badge", "bar_chart", "element", "escape", "histogram", "join", "sparkline", "table"]

#: A blue with a contrast of more than 3.5 to white and to the dark pages of notebooks.
ACCENT: Final = "#3d85c6"

_VOID = {"br", "col", "hr", "img"}
_TAGS = _VOID | {
    *("a", "b", "caption", "code", "details", "div", "em", "figcaption", "figure", "h1", "h2", "h3", "i", "li", "ol"),
    *("p", "pre", "section", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "th", "thead"),
    *("tr", "ul", "svg", "g", "circle", "desc", "line", "path", "polyline", "rect", "text", "title"),
}
_ATTRIBUTE = re.compile(r"(?!on)[A-Za-z][A-Za-z0-9-]*")
#: Where an address may lead: to other pages and this one, and for images nowhere.
_SAFE_URL = {
    "href": re.compile(r"#[^\s]*|https?://[^\s]+"),
    "src": re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]*"),
}

#: What XML cannot hold at all, and half characters that no encoding can.
_IMPOSSIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})

_EDGE = "1px solid rgba(128,128,128,.4)"
_CELL = "padding:.2em .7em;vertical-align:top"


class Html(str):
    """Text that is markup already and is not escaped again. Make it with ``element``, not from data."""

    __slots__ = ()

    def __html__(self) -> str:
        """The markup, as template engines ask for it."""
        return str(self)

    def _repr_html_(self) -> str:
        return str(self)


def escape(value: object) -> Html:
    """Any value as text; what is ``Html`` stays as it is.

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#39;c&#39;'
    """
    if isinstance(value, Html):
        return value
    return Html(_IMPOSSIBLE.sub("\ufffd", str(value)).translate(_ENTITIES))


def join(*children: object) -> Html:
    """Children one behind the other, each escaped unless it is ``Html``; None is nothing."""
    return Html("".join(escape(child) for child in children if child is not None))


def element(tag: str, *children: object, **attributes: object) -> Html:
    """One element. Underscores in attributes are hyphens, one at the end is dropped; None and False leave it out.

    >>> element("td", "a < b", class_="name", data_row=3)
    '<td class="name" data-row="3">a &lt; b</td>'
    """
    if tag not in _TAGS:
        raise ValueError(f"element {tag!r}: not one of the tags that poolish writes ({', '.join(sorted(_TAGS))})")
    start = "".join(_attribute(name, value) for name, value in attributes.items() if not _is_left_out(value))
    if tag in _VOID:
        return Html(f"<{tag}{start}/>")
    return Html(f"<{tag}{start}>{join(*children)}</{tag}>")


def table(headers: Sequence[object], rows: Iterable[Sequence[object]], *, caption: object = None) -> Html:
    """A table; numbers are set to the right.

    >>> table(["name", "rows"], [["web", 3]]).count("<td")
    2
    """
    style = "border-collapse:collapse;border:none;margin:.5em 0;font-variant-numeric:tabular-nums"
    head = element("tr", *(_cell("th", header, border_bottom=_EDGE, text_align="left") for header in headers))
    body = [element("tr", *(_cell("td", value, text_align=_side(value)) for value in row)) for row in rows]
    title = None if caption is None else element("caption", caption, style="text-align:left;opacity:.7")
    return element("table", title, element("thead", head), element("tbody", *body), style=style)


#: Backgrounds, half transparent for light and dark pages; what is neither has none.
_OUTCOMES: Final = {
    "ok": "rgba(64,160,96,.25)",
    "warning": "rgba(230,160,0,.35)",
    "failed": "rgba(220,60,50,.35)",
}


def badge(word: object) -> Html:
    """An outcome (ok, warning, failed) on its colour; any other word on none.

    >>> badge("ok") != badge("insufficient")
    True
    """
    colour = _OUTCOMES.get(str(word), "transparent")
    return element("span", word, style=f"background:{colour};border-radius:.3em;padding:0 .4em")


def page(title: object, *children: object) -> str:
    """A whole page, which needs nothing from elsewhere and runs nothing.

    >>> page("rye & wheat", element("p", "bread")).startswith("<!doctype html>")
    True
    """
    style = "font:15px/1.5 system-ui,sans-serif;max-width:75em;margin:2em auto;padding:0 1em"
    head = f'<!doctype html><meta charset="utf-8"><title>{escape(title)}</title>'
    return f"{head}{element('div', *children, style=style)}\n"


def sparkline(values: Iterable[float], *, width: int = 120, height: int = 24, title: object = None) -> Html:
    """A line through values at equal distances, with gaps where there is none (NaN, infinity, None)."""
    points = _scaled(values)
    step = (width - 4) / max(len(points) - 1, 1)
    runs: list[list[str]] = [[]]
    for i, point in enumerate(points):
        if point is None:
            runs.append([])
        else:
            runs[-1].append(f"{_short(2 + i * step)},{_short(2 + (1 - point) * (height - 4))}")
    lines = [_line(run) for run in runs if run]
    return _svg(width, height, title, *lines or [_no_data(height)])


def histogram(
    counts: Sequence[float],
    edges: Sequence[float],
    *,
    width: int = 240,
    height: int = 64,
    title: object = None,
    ends: tuple[object, object] | None = None,
) -> Html:
    """Counts as the areas of bars from each edge to the next, so a wide bin is no taller for being wide.

    ``ends`` are written below the first and the last bar, by default the edges there.
    """
    if len(edges) != len(counts) + 1:
        raise ValueError(f"{len(counts)} counts need {len(counts) + 1} edges, got {len(edges)}")
    places = _scaled(edges)
    heights = _shares(_densities(counts, places, narrow=1 / width))
    floor = height - 14
    bars = [
        _bar(left * width, floor * (1 - share), max((right - left) * width - 0.5, 0.5), floor * share)
        for left, right, share in zip(places, places[1:], heights, strict=False)
        if left is not None and right is not None
    ]
    first, last = (edges[0], edges[-1]) if ends is None else ends
    below = _text(0, height - 2, _figure(first)), _text(width, height - 2, _figure(last), text_anchor="end")
    return _svg(width, height, title, *bars, *below if bars else [_no_data(height)])


def bar_chart(
    labels: Sequence[object], values: Sequence[float], *, width: int = 420, row: int = 18, title: object = None
) -> Html:
    """One bar to the right for each label, its value behind it; what is negative or no number has no bar."""
    if len(labels) != len(values):
        raise ValueError(f"{len(labels)} labels for {len(values)} values")
    lines: list[Html] = []
    for i, (label, value, share) in enumerate(zip(labels, values, _shares(values), strict=True)):
        top, length = i * row, share * (width - 220)
        lines += [
            _text(146, top + row - 5, _clip(label), text_anchor="end"),
            _bar(150, top + 2, length, row - 4),
            _text(154 + length, top + row - 5, _figure(value)),
        ]
    return _svg(width, max(len(labels), 1) * row, title, *lines or [_no_data(row)])


# Parts of elements --------------------------------------------------------------------------------------------


def _is_left_out(value: object) -> bool:
    return value is None or value is False


def _attribute(name: str, value: object) -> str:
    name = name.removesuffix("_").replace("_", "-")
    if not _ATTRIBUTE.fullmatch(name) or name == "srcdoc":
        raise ValueError(f"attribute {name!r}: names are letters, digits and '-', and events are never attributes")
    text = "" if value is True else str(value)
    if name in _SAFE_URL and not _SAFE_URL[name].fullmatch(text):
        raise ValueError(f"attribute {name}={text[:60]!r}: not an address that a page of poolish may hold")
    # The value is plain text by now, also if it was Html: markup inside quotes is not markup.
    return f' {name}="{escape(text)}"'


def _cell(tag: str, value: object, **styles: str) -> Html:
    style = "".join(f";{name.replace('_', '-')}:{setting}" for name, setting in styles.items())
    return element(tag, value, style=_CELL + style)


def _side(value: object) -> str:
    return "right" if isinstance(value, Number) and not isinstance(value, bool) else "left"


# Parts of drawings --------------------------------------------------------------------------------------------


def _svg(width: int, height: int, title: object, *children: object) -> Html:
    return element(
        "svg",
        None if title is None else element("title", title),
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        role="img",
        style="vertical-align:middle;overflow:visible",
    )


def _line(points: list[str]) -> Html:
    if len(points) == 1:
        x, y = points[0].split(",")
        return element("circle", cx=x, cy=y, r="1.5", fill=ACCENT)
    return element(
        "polyline",
        points=" ".join(points),
        fill="none",
        stroke=ACCENT,
        stroke_width="1.5",
        stroke_linecap="round",
        stroke_linejoin="round",
    )


def _bar(x: float, y: float, width: float, height: float) -> Html:
    return element("rect", x=_short(x), y=_short(y), width=_short(width), height=_short(height), fill=ACCENT)


def _text(x: float, y: float, text: object, **attributes: object) -> Html:
    style = "font:11px system-ui,sans-serif"
    return element("text", text, x=_short(x), y=_short(y), fill="currentColor", style=style, **attributes)


def _no_data(height: float) -> Html:
    return _text(2, height / 2 + 4, "no data", opacity=".6")


def _scaled(values: Iterable[float]) -> list[float | None]:
    """Values between 0 and 1 by their own range; all equal are in the middle, what is no number is None."""
    numbers = [_finite(value) for value in values]
    known = [number for number in numbers if number is not None]
    # Halves, because the distance between two finite numbers may be infinite.
    low, high = min(known, default=0.0) / 2, max(known, default=0.0) / 2
    if low == high:
        return [None if number is None else 0.5 for number in numbers]
    return [None if number is None else (number / 2 - low) / (high - low) for number in numbers]


def _shares(values: Iterable[float]) -> list[float]:
    """Values as shares of the largest; what is negative or no number has none."""
    numbers = [max(_finite(value) or 0.0, 0.0) for value in values]
    most = max(numbers, default=0.0)
    return [number / most if most else 0.0 for number in numbers]


def _densities(counts: Sequence[float], places: Sequence[float | None], *, narrow: float) -> list[float]:
    """Counts by the width of their bins, as shares of the range.

    A bin ``narrow`` or less, of one value that is frequent, counts as wide as the average: its density would leave
    nothing to see of the others.
    """
    usual = 1 / max(len(counts), 1)
    widths = [usual if left is None or right is None else right - left for left, right in pairwise(places)]
    numbers = [_finite(count) or 0.0 for count in counts]
    return [number / (width if width > narrow else usual) for number, width in zip(numbers, widths, strict=True)]


def _finite(value: float | None) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _figure(value: object) -> str:
    """A number as people read it.

    >>> _figure(1234567), _figure(0.123456), _figure(float("nan"))
    ('1,234,567', '0.1235', 'nan')
    """
    if isinstance(value, Integral) and abs(int(value)) < 10**12:
        return f"{int(value):,}"
    return f"{number:.4g}" if isinstance(number := _float(value), float) else _clip(value)


def _float(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _clip(value: object) -> str:
    text = str(value)
    return text if len(text) <= 22 else text[:21] + "…"
