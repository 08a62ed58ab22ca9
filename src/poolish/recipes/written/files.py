"""Recipes to files, and back."""

from __future__ import annotations

import os

from poolish.errors import BadText, RecipeError
from poolish.files import local_path, publish
from poolish.recipes.recipe import DatasetRecipe
from poolish.recipes.written.reading import from_dict
from poolish.recipes.written.telling import to_dict
from poolish.recipes.written.texts import ending_of, parse, read, to_text


def write(recipe: DatasetRecipe, path: str | os.PathLike[str]) -> None:
    """Publish a recipe, whole or not at all, after proving that the file gives the same recipe back."""
    local_path(path, "DatasetRecipe.save path", instead="the sources of a recipe; save it here and upload the file")
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
    local_path(path, "DatasetRecipe.load path", instead="the sources of a recipe; download the file first")
    return from_dict(read(path), source=os.fspath(path), folder=_folder(path), files=(os.path.realpath(path),))


def _folder(path: str | os.PathLike[str]) -> str:
    return os.path.realpath(os.path.dirname(os.path.abspath(path)))
