"""The buffer and its recipes by their first name: ``from dataset_buffer import DatasetBuffer`` is poolish's own class.

As in poolish, a name is loaded when it is first used, so recipes cost nothing where only the buffer is wanted.

>>> from dataset_buffer import DatasetRecipe, bake, col
>>> bake(DatasetRecipe("few").add_ingredient("numbers", [{"n": 1}, {"n": 2}], where=col.n > 1)).to_pydict()
{'n': [2]}
"""

import poolish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from poolish import DatasetBuffer as DatasetBuffer
    from poolish import DatasetRecipe as DatasetRecipe
    from poolish import bake as bake
    from poolish import col as col
    from poolish import register_normalizer as register_normalizer

__all__ = ["DatasetBuffer", "DatasetRecipe", "bake", "col", "register_normalizer"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'dataset_buffer' has no attribute {name!r}")
        return getattr(poolish, name)
