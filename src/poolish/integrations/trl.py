"""TRL: a buffer as the prompts of an online trainer, and reward functions that record what was generated and scored.

TRL takes ``datasets.Dataset`` only, shuffles row numbers, and generates completions itself. What it generates exists
for one step; ``recording`` keeps it in a buffer, which curricula and other trainers can read.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from poolish.errors import ConfigError
from poolish.rows.buffer import DatasetBuffer
from poolish.rows.snapshot import Snapshot

if TYPE_CHECKING:
    import datasets

__all__ = ["prompts_of", "recording"]

RewardFunction = Callable[..., Any]


def prompts_of(rows: DatasetBuffer | Snapshot, prompt: str = "prompt") -> datasets.Dataset:
    """Return the rows as ``train_dataset=`` of a TRL trainer, as they are now; ``prompt`` names the column of prompts.

    A later append is not part of it: TRL fixes the order when training begins. Make a new one for the next ``train()``;
    to resume from a checkpoint, use the rows that it was trained on (``DatasetBuffer.save`` and ``load``).

    >>> buffer = DatasetBuffer()
    >>> buffer.append([{"question": "2 + 2 ="}])
    >>> prompts_of(buffer, prompt="question")[0]
    {'prompt': '2 + 2 ='}
    """
    if not isinstance(rows, (DatasetBuffer, Snapshot)):
        raise ConfigError(f"prompts_of: got {type(rows).__name__}; pass a DatasetBuffer or a snapshot of one")
    dataset = rows.to_hf_dataset()
    if prompt not in dataset.column_names:
        raise ConfigError(f"prompts_of: no column {prompt!r}, there are {dataset.column_names}; pass prompt=NAME")
    return dataset if prompt == "prompt" else dataset.rename_column(prompt, "prompt")


def recording(buffer: DatasetBuffer, reward: RewardFunction, columns: Sequence[str] = ()) -> RewardFunction:
    """Return ``reward``, which also appends each prompt, completion and reward to ``buffer``, before TRL gets them.

    ``columns`` names columns of the training data to keep beside them. The rows of one call are one append: all or
    none. Each process appends to its own buffer.

    >>> played = DatasetBuffer()
    >>> scored = recording(played, lambda completions, **_: [float(len(text)) for text in completions])
    >>> scored(prompts=["a", "b"], completions=["xyz", ""]), played[0]
    ([3.0, 0.0], {'prompt': 'a', 'completion': 'xyz', 'reward': 3.0})
    """
    if inspect.iscoroutinefunction(reward):

        @functools.wraps(reward)
        async def scored_later(*arguments: Any, **options: Any) -> Any:
            return _record(buffer, await reward(*arguments, **options), options, columns)

        return scored_later

    @functools.wraps(reward)
    def scored(*arguments: Any, **options: Any) -> Any:
        return _record(buffer, reward(*arguments, **options), options, columns)

    return scored


def _record(buffer: DatasetBuffer, rewards: Any, given: dict[str, Any], columns: Sequence[str]) -> Any:
    missing = [name for name in ("prompts", "completions", *columns) if name not in given]
    if missing:
        raise ConfigError(f"recording: the trainer passed no {missing[0]!r}, only {sorted(given)}; correct columns=")
    kept = [given["prompts"], given["completions"], [_number(each) for each in rewards]]
    kept += [given[name] for name in columns]
    names = ["prompt", "completion", "reward", *columns]
    buffer.append([dict(zip(names, values, strict=True)) for values in zip(*kept, strict=True)])
    return rewards


def _number(reward: Any) -> float:
    """A reward; TRL passes over a sample whose reward is None, and calls it NaN."""
    return float("nan") if reward is None else float(reward)
