"""A buffer as the prompts of TRL's GRPO, and reward functions that record what was scored."""

from __future__ import annotations

import asyncio
import math

import pytest

from poolish import DatasetBuffer
from poolish.errors import ConfigError
from poolish.integrations.trl import prompts_of, recording


def test_grpo_trains_on_a_buffer_and_records_each_completion(in_trl, tmp_path):
    """Three steps of four completions; a run that resumes generates and records what the other one did."""
    whole = in_trl.run("train", folder=str(tmp_path))
    rest = in_trl.run("train", folder=str(tmp_path), checkpoint=str(tmp_path / "checkpoint-1"))

    assert whole["steps"] == 3
    assert whole["reward"] == ["likes_bread"]
    played = whole["played"]
    assert sorted(played["id"]) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert {*zip(played["id"], played["prompt"], strict=True)} > {(0, "flour and rye"), (5, "salt and bread")}
    assert played["reward"] == [float(text.count("bread")) for text in played["completion"]]
    assert len(played["reward"]) == 12
    assert rest["played"] == {name: values[4:] for name, values in played.items()}


def test_prompts_are_the_rows_as_they_are_now():
    """A dataset of Hugging Face's, with the column that TRL asks for."""
    buffer = DatasetBuffer()
    buffer.append([{"question": "a", "level": 1}])
    dataset = prompts_of(buffer, prompt="question")
    buffer.append([{"question": "b", "level": 2}])

    assert dataset.to_dict() == {"prompt": ["a"], "level": [1]}
    assert prompts_of(buffer.snapshot(), prompt="question")["prompt"][:] == ["a", "b"]
    with pytest.raises(ConfigError, match=r"no column 'prompt', there are \['question', 'level'\]"):
        prompts_of(buffer)
    with pytest.raises(ConfigError, match="pass a DatasetBuffer"):
        prompts_of([{"prompt": "a"}])


def test_rewards_that_are_none_and_coroutines_are_recorded():
    """What TRL passes over is recorded as NaN; an asynchronous function stays one."""
    played = DatasetBuffer()

    async def later(completions, **_):
        return [None if not text else 1.0 for text in completions]

    scored = recording(played, later)
    rewards = asyncio.run(scored(prompts=["a", "b"], completions=["x", ""]))

    assert rewards == [1.0, None]
    assert scored.__name__ == "later"
    assert played[0]["reward"] == 1.0
    assert math.isnan(played[1]["reward"])


def test_a_reward_that_fails_or_a_column_that_is_missing_records_nothing():
    """All rows of a call, or none."""
    played = DatasetBuffer()
    with pytest.raises(ConfigError, match="no 'level'"):
        recording(played, lambda **_: [1.0], columns=["level"])(prompts=["a"], completions=["x"])
    with pytest.raises(ValueError, match="shorter"):
        recording(played, lambda **_: [1.0])(prompts=["a", "b"], completions=["x", "y"])

    assert len(played) == 0
