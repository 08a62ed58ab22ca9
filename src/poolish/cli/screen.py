"""What a command puts on the screen: text as it is, without markup and without what a terminal would obey."""

from __future__ import annotations

from rich.text import Text

from poolish.printable import printable


def one_line(text: object, style: str = "") -> Text:
    r"""A line for rich, with everything escaped that is not seen, line ends included.

    >>> print(one_line("[red]\x1b[2J\n"))
    [red]\x1b[2J\n
    """
    return Text(printable(text), style=style)


def message(text: object) -> Text:
    """A message of poolish, which may have several lines."""
    return Text(printable(text, keep="\n\t"))
