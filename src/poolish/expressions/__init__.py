"""Conditions and values over columns, written in Python (``col.score > 0.5``) or as text, evaluated by Arrow.

    nodes        the tree: functions, limits, text       rules        per operation: types and values in and out
    grammar      text to tree                            evaluate     a tree on columns; constants for columns
    expression   ``Expression``, ``col``, ``parse``

One language with one evaluator serves recipes, suites and the command line.
"""

from poolish.expressions.evaluate import EVALUATOR_VERSION, halving
from poolish.expressions.expression import Expression, as_expression, as_value, col, parse

__all__ = ["EVALUATOR_VERSION", "Expression", "as_expression", "as_value", "col", "halving", "parse"]
