"""Names, paths and values come from data: whatever poolish prints about an object cannot drive a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolish import DatasetBuffer, DatasetConsumer, DatasetRecipe, Field, MemmapBuffer, Schema, StreamStore, errors
from poolish.guards import Faults, Suite
from poolish.load import AdaptedDataset, CachedDataset

#: A title for the window, a cleared screen, a reversed line, and a line of its own.
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\u202eko\nforged: ok\rforged: ok"


def buffer() -> DatasetBuffer:
    filled = DatasetBuffer()
    filled.append([{HOSTILE: 1, "nested": {HOSTILE: 2}}])
    return filled


def stream(path: Path | None = None) -> StreamStore:
    return StreamStore(path, {HOSTILE: "int64"})


def closed(path: Path) -> StreamStore:
    store = stream(path / HOSTILE)
    store.close()
    return store


def rejecting() -> object:
    guarded = DatasetBuffer(guard=Suite("s").expect(HOSTILE, at_most=0).on(error="drop"))
    guarded.append([{HOSTILE: 1}])
    return guarded.rejected


def failing() -> Faults:
    def read(row: Any) -> Any:
        if isinstance(row, int) and row == 0:
            return {"x": 1}
        raise ValueError(HOSTILE)

    faults = Faults(on_sample="skip", budget=10)
    faults.read(np.array([0, 1]), read, read)
    return faults


def recipe(n: int = 1) -> DatasetRecipe:
    made = DatasetRecipe(HOSTILE)
    for i in range(n):
        made = made.add_ingredient(f"{HOSTILE}{i}", buffer())
    return made


SHOWN: dict[str, Callable[[Path], object]] = {
    "buffer": lambda path: buffer(),
    "snapshot": lambda path: buffer().snapshot(),
    "schema": lambda path: Schema.of({HOSTILE: "int64"}),
    "field": lambda path: Field(HOSTILE, "int64"),
    "stream": lambda path: stream(),
    "stream with a path": lambda path: stream(path / HOSTILE),
    "closed stream": closed,
    "windows": lambda path: stream().as_dataset(width=2),
    "array": lambda path: MemmapBuffer(path / HOSTILE),
    "recipe": lambda path: recipe(),
    "bake": lambda path: recipe().bake(),
    "report": lambda path: recipe().bake().report,
    "difference": lambda path: recipe(2).diff(recipe()),
    "lineage": lambda path: recipe().bake().lineage.why(0),
    "dataset": lambda path: AdaptedDataset([{HOSTILE: 1}], length=len, get=lambda rows, i: rows[i]),
    "cache": lambda path: CachedDataset([1, 2], path=path / HOSTILE),
    "rejected": lambda path: rejecting(),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_of_an_object_is_harmless(tmp_path, name):
    """In one line where it is one: neither an escape, nor a reversed line, nor a line that poolish did not write."""
    shown = SHOWN[name](tmp_path)

    for text in (repr(shown), str(shown)):
        assert_harmless(text)


def test_faults_are_summed_up_and_logged_harmlessly(caplog):
    """The messages of errors that samples raised are text from anywhere."""
    assert_harmless(failing().summary())
    assert_harmless(caplog.text)


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_the_message_of_an_error_is_harmless(kind):
    """In one place, for all of them; lines and tabs stay, because some messages have several lines."""
    assert str(kind(f"a\x1b[2J\n\tb{HOSTILE[1:6]}")) == "a\\x1b[2J\n\tb\\x1b]0;o"


def test_a_queue_that_is_not_there_is_named_harmlessly(tmp_path):
    """The path is the config's, and so anybody's."""
    with pytest.raises(errors.QueueNotFound) as caught:
        DatasetConsumer(tmp_path / "x\x1b]0;owned\x07", timeout_s=0.1).next_batch("train")

    assert r"x\x1b]0;owned\x07" in str(caught.value)


def assert_harmless(text: str) -> None:
    bad = [each for each in text if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp", "Cs") and each not in "\n"]
    assert not bad, (bad, text)
    assert not [line for line in text.splitlines() if line.startswith("forged")], text
