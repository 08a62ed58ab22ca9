"""Recipes as files of YAML, TOML or JSON: plain values, read strictly, and never code.

    DatasetRecipe --to_dict--> names, numbers, lists --to_text--> text --write--> .yaml .toml .json
                 <--from_dict--                      <--parse---      <--read---

    name: breads
    seed: 7
    instructions:
    - {ingredient: rye, source: data/*.parquet, where: flour == 'rye', take: 100, pick: top(stars)}
    - {step: loud, use: shout, version: 2}

A step is named: one of ``words.OPTIONS``, or what ``@register_step`` has registered; a file cannot name anything
to import. What is wrong is listed at once, each with its place. Relative paths are relative to the file.

    telling   a recipe as plain values          words         the keys and options that there are
    reading   plain values as a recipe          values        how each is checked, and where it stands
    texts     plain values as text, and back    meaning       the fingerprint, whichever way it was written
    files     text to files, and back           json_schema   all of it for editors
"""

from poolish.recipes.written.files import load, write
from poolish.recipes.written.meaning import fingerprint
from poolish.recipes.written.reading import from_dict
from poolish.recipes.written.telling import to_dict
from poolish.recipes.written.texts import parse, read, to_text

__all__ = ["fingerprint", "from_dict", "load", "parse", "read", "to_dict", "to_text", "write"]
