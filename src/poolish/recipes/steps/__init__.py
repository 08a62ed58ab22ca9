"""Preparation steps of a recipe.

step        what a step is: protocols, results, rows that fail
row_local   built-in steps on one row at a time: map, filter, select, drop, rename, cast, fill_nulls, tokenize
barriers    steps that need all rows: dedup, limit, shuffle, standardise, winsorize
called      functions of the user's, on rows or batches
suites      a suite as a step
registry    every step by its name, with its options
"""
