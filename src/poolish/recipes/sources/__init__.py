"""Where rows come from.

    source   tables, buffers, streams, iterables    files          paths, globs and directories as one source
    nested   recipes                                paths          which files those are
                                                    one_file       one of them; parquet_file, formats by its format
                                                    exact_numbers  has text a number that a table would round?
                                                    pruning        what of it a filter cannot hold for
                                                    stamps         has it changed?

All are cut into fragments, which are read, baked and cached each by itself.
"""

from poolish.recipes.sources.source import (
    BufferSource,
    Fragment,
    Source,
    StreamSource,
    TableSource,
    as_source,
    held,
    no_rows,
    selected,
    without_columns,
)

__all__ = [
    "BufferSource",
    "Fragment",
    "Source",
    "StreamSource",
    "TableSource",
    "as_source",
    "held",
    "no_rows",
    "selected",
    "without_columns",
]
