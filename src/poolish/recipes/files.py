"""Recipes as files of YAML, TOML or JSON: plain values, read strictly, and never code.

    DatasetRecipe --to_dict--> names, numbers, lists --to_text--> text --write--> .yaml .toml .json
                 <--from_dict--                      <--parse---      <--read---

    name: breads
    seed: 7
    instructions:
    - {ingredient: rye, source: data/*.parquet, where: flour == 'rye', take: 100, pick: top(stars)}
    - {step: loud, use: shout, version: 2}

A step is named: one of ``file_words.OPTIONS``, or what ``@register_step`` has registered; a file cannot name anything
to import. What is wrong is listed at once, each with its place. Relative paths are relative to the file.

    file_telling   a recipe as plain values          file_words    the keys and options that there are
    file_reading   plain values as a recipe          file_values   how each is checked, and where it stands
    file_texts     plain values as text, and back    meaning       the fingerprint, whichever way it was written
"""

from __future__ import annotations

import os

from poolish.errors import BadText, RecipeError
from poolish.files import publish
from poolish.recipes.file_reading import from_dict
from poolish.recipes.file_telling import to_dict
from poolish.recipes.file_texts import ending_of, parse, read, to_text
from poolish.recipes.meaning import fingerprint
from poolish.recipes.recipe import DatasetRecipe

__all__ = ["fingerprint", "from_dict", "load", "parse", "read", "to_dict", "to_text", "write"]


def write(recipe: DatasetRecipe, path: str | os.PathLike[str]) -> None:
    """Publish a recipe, whole or not at all, after proving that the file gives the same recipe back."""
    ending, folder = ending_of(path), _folder(path)
    text = to_text(to_dict(recipe, folder), ending)
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise BadText(f"{os.fspath(path)}: {error}; remove the lone surrogate") from None
    again = from_dict(parse(text, ending, os.fspath(path)), source=f"{os.fspath(path)}, as it would be", folder=folder)
    if again.fingerprint != recipe.fingerprint:
        raise RecipeError(f"{os.fspath(path)}: the file would be another recipe than {recipe.name!r}; tell us how")
    with publish(path) as file:
        file.write(data)


def load(path: str | os.PathLike[str]) -> DatasetRecipe:
    """The recipe in a file."""
    return from_dict(read(path), source=os.fspath(path), folder=_folder(path), files=(os.path.realpath(path),))


def _folder(path: str | os.PathLike[str]) -> str:
    return os.path.realpath(os.path.dirname(os.path.abspath(path)))
