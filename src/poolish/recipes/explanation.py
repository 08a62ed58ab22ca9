"""An explanation as a value: figures that are exact or estimated, as text and as HTML.

    breads: ~1,200 rows, ~12.3 kB, about 1.4 ms
      ingredient rye: 8,000 -> ~1,200 rows, ~12.3 kB, 1.4 ms, 2 of 8 fragments cached (6 new content)
      result: n int64, word string

What is estimated is marked ``~``. ``explain`` finds out what stands here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from poolish import html
from poolish.printable import counted, printable


@dataclass(frozen=True)
class Estimate:
    """A number, and whether it is known; with ``is_bound`` it cannot be estimated, but is not larger.

    >>> print(Estimate(1200, True), Estimate(1200.4, False), Estimate(2, True) + Estimate(1, False))
    1,200 ~1,200 ~3
    >>> print(Estimate(2, True) + Estimate(7, False, is_bound=True))
    at most ~9
    """

    value: float
    is_exact: bool
    is_bound: bool = False

    def __str__(self) -> str:
        return f"{'at most ' if self.is_bound else ''}{'' if self.is_exact else '~'}{round(self.value):,}"

    def __add__(self, other: Estimate) -> Estimate:
        is_bound = self.is_bound or other.is_bound
        return Estimate(self.value + other.value, self.is_exact and other.is_exact, is_bound)


NOTHING = Estimate(0, True)


@dataclass
class ExplainedLine:
    """What one instruction will do. ``missing`` are fragments that are not cached, by reason."""

    kind: str
    name: str
    rows_in: Estimate = NOTHING
    rows_out: Estimate = NOTHING
    tokens_in: Estimate | None = None
    tokens_out: Estimate | None = None
    n_bytes: Estimate = NOTHING
    seconds: float = 0.0
    fragments: int = 0
    cached: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def cache_text(self) -> str:
        """How many fragments are cached, and why the others are not."""
        if not self.fragments:
            return ""
        reasons = ", ".join(f"{n:,} {reason}" for reason, n in self.missing.items())
        fragments = counted(self.fragments, "fragment")
        return f"{self.cached:,} of {fragments} cached{f' ({reasons})' if reasons else ''}"


@dataclass(frozen=True)
class Explanation:
    """What a bake will do, as a value: print it, or look at it in a notebook."""

    recipe: str
    lines: tuple[ExplainedLine, ...]
    rows: Estimate
    tokens: Estimate | None
    n_bytes: Estimate
    seconds: float
    schema: pa.Schema | None
    problems: tuple[str, ...]

    def _head(self) -> str:
        tokens = "" if self.tokens is None else f", {self.tokens} tokens"
        return (
            f"{self.recipe}: {self.rows} rows{tokens}, {size_text(self.n_bytes)}, about {duration_text(self.seconds)}"
        )

    def __str__(self) -> str:
        columns = [] if self.schema is None else [f"  result: {', '.join(f'{f.name} {f.type}' for f in self.schema)}"]
        problems = [f"  problem: {problem}" for problem in self.problems]
        lines = [self._head(), *map(_line_text, self.lines), *columns, *problems]
        return "\n".join(map(printable, lines))

    def to_html(self) -> str:
        """As a page that needs nothing from elsewhere and runs nothing."""
        return html.page(self.recipe, self._body())

    def _repr_html_(self) -> str:
        return str(html.element("div", self._body()))

    def _body(self) -> html.Html:
        headers = ["instruction", "", "rows in", "rows out", "tokens out", "size", "time", "cache", "notes"]
        parts = [html.element("h2", self._head()), html.table(headers, [_cells(line) for line in self.lines])]
        if self.schema is not None:
            rows = [[html.element("code", column.name), str(column.type)] for column in self.schema]
            parts.append(html.table(["column of the result", "type"], rows))
        parts += [html.element("p", html.element("strong", "problem: "), problem) for problem in self.problems]
        return html.join(*parts, html.element("p", html.element("small", "~ is estimated from a sample")))


def _line_text(line: ExplainedLine) -> str:
    tokens = "" if line.tokens_out is None else f", {line.tokens_out} tokens"
    parts = [f"  {line.kind} {line.name}: {line.rows_in} -> {line.rows_out} rows{tokens}", size_text(line.n_bytes)]
    parts += [duration_text(line.seconds), line.cache_text()]
    return "; ".join([", ".join(part for part in parts if part), *line.notes])


def _cells(line: ExplainedLine) -> list[object]:
    figures = [line.rows_in, line.rows_out, line.tokens_out, size_text(line.n_bytes), duration_text(line.seconds)]
    style = "text-align:right;white-space:nowrap"
    shown = [html.element("div", figure, style=style) for figure in figures]
    return [line.kind, html.element("b", line.name), *shown, line.cache_text(), "; ".join(line.notes)]


def size_text(n_bytes: Estimate) -> str:
    """Bytes as people read them.

    >>> size_text(Estimate(1_234_567, True)), size_text(Estimate(12, False))
    ('1.2 MB', '~12 bytes')
    """
    mark, value = "" if n_bytes.is_exact else "~", n_bytes.value
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000:
            return f"{mark}{value:.0f} {unit}" if unit == "bytes" else f"{mark}{value:.1f} {unit}"
        value /= 1000
    return f"{mark}{value:,.1f} TB"


def duration_text(seconds: float) -> str:
    """Seconds as people read them.

    >>> duration_text(0.0004), duration_text(2.34), duration_text(7300)
    ('0.4 ms', '2.3 s', '2.0 h')
    """
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
