"""Text from data as a terminal, a log or a traceback may show it.

Column names, file names and values come from anyone. Raw, they could set a window's title, move the cursor, reverse a
line or add one that poolish never wrote. Whatever is put into text for people goes through ``printable``.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["counted", "nearest", "printable", "suggestion"]


def printable(text: object, keep: str = "") -> str:
    r"""The text with every control, format and line-breaking character escaped as in Python, except those to ``keep``.

    >>> print(printable("reward\x1b]0;owned\x07\nall is ok\u202e"))
    reward\x1b]0;owned\x07\nall is ok\u202e
    >>> printable("größe 長さ") == "größe 長さ"
    True
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(each if each in keep or _is_visible(each) else ascii(each)[1:-1] for each in plain)


def counted(n: int, noun: str) -> str:
    """A number of things, in words.

    >>> counted(1, "check"), counted(2_000, "row"), counted(3, "batch")
    ('1 check', '2,000 rows', '3 batches')
    """
    plural = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{n:,} {noun}{'' if n == 1 else plural}"


def nearest(name: object, known: Iterable[object]) -> str:
    """``; did you mean 'x'?`` with the known name that is most alike; empty if none is.

    >>> nearest("rewrad", ["reward", "text"])
    "; did you mean 'reward'?"
    """
    found = suggestion(name, known)
    return f"; {found}" if found else ""


def suggestion(name: object, known: Iterable[object], otherwise: str = "") -> str:
    """``did you mean 'x'?`` with the known name that is most alike; ``otherwise`` if none is.

    >>> suggestion("rewrad", ["reward", "text"]), suggestion("n", ["reward"], "there is 'reward'")
    ("did you mean 'reward'?", "there is 'reward'")
    """
    near = get_close_matches(str(name), [str(each) for each in known], n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise


def _is_visible(character: str) -> bool:
    # Spaces of other widths than ours are no tricks: texts of many languages have them.
    return character.isprintable() or unicodedata.category(character) == "Zs"
