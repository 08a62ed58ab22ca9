"""Conditions and values over columns, written in Python (``col.score > 0.5``) or as text, evaluated by Arrow.

    nodes        the tree: functions, limits, text       grammar      text to tree
    rules        per operation: types and values in and out; the semantics of nulls, zero and overflow
    expression   ``Expression``, ``col``, ``parse``; a tree on columns; constants for columns

One language with one evaluator serves recipes, suites and the command line.
"""

from poolish.expressions.expression import Expression, as_expression, as_value, col, halving, parse
from poolish.expressions.rules import EVALUATOR_VERSION

__all__ = ["EVALUATOR_VERSION", "Expression", "as_expression", "as_value", "col", "halving", "parse"]
