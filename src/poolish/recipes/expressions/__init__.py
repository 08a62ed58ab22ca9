"""Conditions and values over columns, written in Python (``col.score > 0.5``) or as text, and evaluated by Arrow.

    expression   what users write             parts        what has met a schema, and its type
    nodes        what a tree may hold         rules        types and values in, type and value out
    text         a tree as text               evaluation   a tree from columns upwards
                                              binding      constants in place of columns

An expression has no types before it meets a table or a schema.
"""

from poolish.recipes.expressions.expression import Expression, as_expression, as_value, col, parse

__all__ = ["Expression", "as_expression", "as_value", "col", "parse"]
