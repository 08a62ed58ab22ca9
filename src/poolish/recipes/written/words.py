"""What may stand in a recipe file: keys, built-in steps and their options.

Files are read by these tables (``reading``), and described by them to editors (``json_schema``).
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1

TOP_KEYS = ("name", "seed", "total", "unit", "tokens", "instructions", "version", "$schema")
INGREDIENT_KEYS = ("ingredient", "source", "where", "take", "weight", "pick", "on_short")
STEP_KEYS = ("step", "use", "where", "version")


@dataclass(frozen=True)
class Option:
    """What a built-in step may be told: a ``kind`` of value (see ``KINDS``), and what it is for."""

    kind: str
    about: str
    is_needed: bool = False


#: Steps that files can name without registering anything, and their options.
OPTIONS: dict[str, dict[str, Option]] = {
    "map": {"columns": Option("expressions", "new columns and the expression or number that each is made by", True)},
    "filter": {"keep": Option("expression", "which rows stay", True)},
    "select": {"columns": Option("names", "the columns that stay, in this order", True)},
    "drop": {"columns": Option("names", "the columns that go", True)},
    "rename": {"columns": Option("texts", "old names and new names", True)},
    "cast": {"columns": Option("texts", "columns and their new types", True)},
    "fill_nulls": {"columns": Option("values", "columns and what stands for null", True)},
    "tokenize": {
        "tokenizer": Option("text", "the name of one of tiktoken's encodings", True),
        "column": Option("text", "where the text is"),
        "into": Option("text", "the column for the tokens"),
        "count": Option("text", "the column for how many there are"),
    },
    "dedup": {"columns": Option("names", "what equal rows are equal in; all columns by default")},
    "limit": {"n": Option("count", "how many rows stay", True)},
    "shuffle": {"seed": Option("count", "another seed than the recipe's")},
    "winsorize": {
        "column": Option("text", "the column that is cut", True),
        "lower": Option("number", "the quantile below which values are cut"),
        "upper": Option("number", "the quantile above which values are cut"),
        "low": Option("number", "the lowest value, if it is not to be fitted"),
        "high": Option("number", "the highest value, if it is not to be fitted"),
    },
    "standardise": {
        "column": Option("text", "the column on its new scale", True),
        "mean": Option("number", "the mean, if it is not to be fitted"),
        "std": Option("number", "the standard deviation, if it is not to be fitted"),
    },
    "validate": {"suite": Option("suite", "a suite, or the path of its file", True)},
}
