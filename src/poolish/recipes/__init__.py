"""Datasets as recipes: declared, repeatable, and baked again only where something changed."""

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
