"""Names that are almost the name of a setting.

A setting that nobody knows passes through to the provider, so a slip of the finger would pass as well and the run would
go on with the default. A *near miss* is a known name with other capitals or underscores, or with one slip in one of
its words: a letter too many, missing or wrong, or two swapped.

Similarity as such (``difflib``) does not tell slips from names: ``dataest`` is 0.86 like ``dataset``, but so is
``val_batch_size`` like ``batch_size``, and ``encoder_layers`` is 0.92 like ``decoder_layers``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

#: One letter away from a setting of ours, and settings of their own in many a config.
_ESTABLISHED = {"feed", "patch_size", "speed"}

#: Shorter words are names in themselves: ``n_head`` and ``d_head``, ``lr`` and ``wr``.
_MIN_LETTERS = 3


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` was probably meant to be; None if it is known, or a name of its own.

    >>> near_miss("bacth_size", ["block_size", "batch_size"])
    'batch_size'
    >>> near_miss("val_batch_size", ["block_size", "batch_size"])
    """
    known = list(known)
    if name in known or name in _ESTABLISHED:
        return None
    return next((other for other in known if _is_near(name, other)), None)


def _is_near(name: str, other: str) -> bool:
    words, other_words = name.lower().split("_"), other.lower().split("_")
    if "".join(words) == "".join(other_words):
        return True
    if len(words) != len(other_words):
        return False
    different = [(word, meant) for word, meant in zip(words, other_words, strict=True) if word != meant]
    return len(different) == 1 and min(map(len, different[0])) >= _MIN_LETTERS and _is_one_slip(*different[0])


def _is_one_slip(word: str, meant: str) -> bool:
    i = next(i for i, (letter, right) in enumerate(zip_longest(word, meant)) if letter != right)
    # beta1 and beta2 are two settings.
    if word[i : i + 1].isdigit() or meant[i : i + 1].isdigit():
        return False
    too_many, missing, wrong = word[i + 1 :] == meant[i:], word[i:] == meant[i + 1 :], word[i + 1 :] == meant[i + 1 :]
    swapped = word[i : i + 2] == meant[i : i + 2][::-1] and word[i + 2 :] == meant[i + 2 :]
    return too_many or missing or wrong or swapped
