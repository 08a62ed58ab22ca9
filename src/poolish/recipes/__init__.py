"""Datasets as recipes: declared, repeatable, and baked again only where something changed.

recipe          ``DatasetRecipe``                        plan           instructions, and how they are followed
baking          a bake                                   engine         where its fragments are baked
pipeline        what is done to one fragment, filters    fragment_rows  rows on their way, and those that fail
selection       how many rows, and which                 cache          baked fragments on disk
sources/        where rows come from                     steps/         what is done to them
report          what a bake did                          lineage        where its rows came from
explain         a dry run of a bake                      sampling, explanation   what it reads, and its result
description     a recipe key by key: files, identity     differences    between recipes, and between bakes
models          recipe files, by pydantic                file_values, serialization   their values and text
"""

from poolish.expressions import Expression, col
from poolish.recipes.plan import AddIngredient, PrepareStep, stratified, top
from poolish.recipes.recipe import DatasetRecipe, bake
from poolish.recipes.report import BakeResult
from poolish.recipes.steps.barriers import Barrier, BarrierContext, Decision
from poolish.recipes.steps.registry import register_step

__all__ = [
    "AddIngredient",
    "BakeResult",
    "Barrier",
    "BarrierContext",
    "DatasetRecipe",
    "Decision",
    "Expression",
    "PrepareStep",
    "bake",
    "col",
    "register_step",
    "stratified",
    "top",
]
