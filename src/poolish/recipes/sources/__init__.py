"""Where rows come from.

    source          the protocol; tables, buffers, streams, recipes; what a value stands for
    files           paths, globs and directories as one source
    arrow_dataset   the files of a pyarrow dataset
    pruning         row groups that a filter cannot hold for

All are cut into fragments, which are read, baked and cached each by itself.
"""

from poolish.recipes.sources.files import FileSource
from poolish.recipes.sources.source import (
    BufferSource,
    RecipeSource,
    Source,
    StreamSource,
    TableSource,
    are_paths,
    as_source,
    check_storage,
    is_path,
    is_recipe,
    materialize,
)

__all__ = [
    "BufferSource",
    "FileSource",
    "RecipeSource",
    "Source",
    "StreamSource",
    "TableSource",
    "are_paths",
    "as_source",
    "check_storage",
    "is_path",
    "is_recipe",
    "materialize",
]
