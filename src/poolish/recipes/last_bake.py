"""What a recipe was when it was baked last, so that ``explain`` can tell why something has to be baked again.

One small file beside the cache for each recipe. Only reasons are lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from poolish.errors import PoolishError
from poolish.files import read_json, write_json
from poolish.recipes.baking import IngredientState
from poolish.recipes.cache import Cache, key_of
from poolish.recipes.pipeline import FragmentPipeline
from poolish.recipes.sources import Fragment

_INDEX = "index"


def remember(cache: Cache, recipe: str, states: Sequence[IngredientState]) -> None:
    """Write down what was baked."""
    told = {state.name: _told(state.pipeline, state.fragments) for state in states}
    cache.folder(_INDEX)
    write_json(_place(cache, recipe), told, durable=False)


class LastBake:
    """What was written down of a recipe, as far as there is anything."""

    def __init__(self, cache: Cache | None, recipe: str) -> None:
        self._ingredients: Any = {} if cache is None else _read(_place(cache, recipe))

    def changed(self, pipeline: FragmentPipeline, fragment: Fragment) -> str | None:
        """What of an ingredient is not as it was then; None if nothing is."""
        try:
            return _changed(self._ingredients[pipeline.ingredient], _told(pipeline, [fragment]), _name(fragment))
        except (LookupError, TypeError, AttributeError):  # a new ingredient, or a file that is not ours
            return "new content"


def _place(cache: Cache, recipe: str) -> Path:
    return cache.path / _INDEX / f"{key_of('recipe', recipe)}.json"


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except (OSError, PoolishError):
        return {}


def _told(pipeline: FragmentPipeline, fragments: Sequence[Fragment]) -> dict[str, Any]:
    return {
        "filter": str(pipeline.where),
        "seed": str(pipeline.seed),
        "steps": [bound.fingerprint for bound in pipeline.steps],
        "on_error": pipeline.on_error,
        "fragments": {_name(fragment): fragment.fingerprint for fragment in fragments},
    }


def _name(fragment: Fragment) -> str:
    return f"{fragment.number} {fragment.name}"


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], fragment: str) -> str | None:
    if before["fragments"].get(fragment) != now["fragments"][fragment]:
        return "new content" if fragment not in before["fragments"] else "changed content"
    for word in ("filter", "seed", "on_error"):
        if before[word] != now[word]:
            return f"changed {word}"
    if before["steps"] != now["steps"]:
        old = {step[0]: step for step in before["steps"]}
        other = [step[0] for step in now["steps"] if old.get(step[0]) != step]
        return f"changed step {other[0]}" if other else "changed steps"
    return None
