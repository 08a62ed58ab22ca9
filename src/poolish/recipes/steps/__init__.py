"""Preparation steps of a recipe.

row_local   built-in steps on one row at a time: map, filter, select, drop, rename, cast, fill_nulls, tokenize
barriers    steps that need all rows: dedup, limit, shuffle, standardise, winsorize; and suites
called      functions of the user's, on rows or batches, and the tables that their rows become
registry    every step by its name, with its options

What a step is stands in ``fragment_rows``, beside the rows that it is done to.
"""
