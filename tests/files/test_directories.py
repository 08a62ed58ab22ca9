"""A directory is there whole or not at all, and the old one stays whole until the new one is."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from poolish.errors import ConfigError
from poolish.files import publish_directory, publishing
from poolish.files.publishing import exchange
from tests.effort import times
from tests.faults import die_at_call, fork, in_child, kill

NAMES = ["a.txt", "b.txt", "inner"]


def fill(folder: Path, word: str) -> None:
    """Three files that belong together."""
    (folder / "a.txt").write_text(word)
    (folder / "inner").mkdir()
    (folder / "inner" / "deep.txt").write_text(word)
    (folder / "b.txt").write_text(word)


def publish_word(target: Path, word: str) -> None:
    with publish_directory(target) as folder:
        fill(folder, word)


def whole(target: Path) -> str | None:
    """The word in a directory, None if there is none; it is never anything between."""
    if not target.exists():
        return None
    assert sorted(os.listdir(target)) == NAMES
    words = {(target / name).read_text() for name in ("a.txt", "b.txt", "inner/deep.txt")}
    assert len(words) == 1
    return words.pop()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_directory_appears_with_all_that_was_written(target: Path):
    """And not before."""
    with publish_directory(str(target)) as folder:
        fill(folder, "new")
        assert not target.exists()
        assert folder.parent == target.parent

    assert whole(target) == "new"
    assert os.listdir(target.parent) == ["out"]


def test_a_directory_takes_the_place_of_another(target: Path):
    """Nothing of the old one is left, also if it had other names in it."""
    fill(target.parent, "outside")
    target.mkdir()
    (target / "diary.txt").write_text("old")

    publish_word(target, "new")

    assert whole(target) == "new"
    assert sorted(os.listdir(target.parent)) == [*NAMES, "out"]


def test_a_directory_takes_the_place_of_an_empty_one(target: Path):
    """Which is as good as none."""
    target.mkdir()

    publish_word(target, "new")

    assert whole(target) == "new"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_nothing_happened(target: Path, error: type[BaseException]):
    """The old directory is there, the unfinished one is gone."""
    publish_word(target, "old")

    def write() -> None:
        with publish_directory(target) as folder:
            fill(folder, "new")
            raise error

    with pytest.raises(error):
        write()

    assert whole(target) == "old"
    assert os.listdir(target.parent) == ["out"]


def test_a_check_can_refuse_at_the_last_moment(target: Path):
    """It sees what is there when everything is written, and nothing is replaced then."""

    def refuse(path: Path) -> None:
        if os.listdir(path):
            raise ConfigError("there is a diary")

    def write() -> None:
        with publish_directory(target, check=refuse) as folder:
            fill(folder, "new")
            target.mkdir()
            (target / "diary.txt").write_text("dear")

    with pytest.raises(ConfigError, match="diary"):
        write()

    assert os.listdir(target) == ["diary.txt"]
    assert os.listdir(target.parent) == ["out"]


def test_a_file_is_not_replaced(target: Path):
    """The system's own error, and the file stays."""
    target.write_text("a file")

    with pytest.raises(NotADirectoryError):
        publish_word(target, "new")

    assert target.read_text() == "a file"
    assert os.listdir(target.parent) == ["out"]


def test_everything_is_synced_before_it_has_its_name(target: Path, monkeypatch: pytest.MonkeyPatch):
    """All files, inner directories and the directory itself, then the name; links are not followed."""
    done: list[str] = []
    monkeypatch.setattr(publishing, "sync", lambda fd, path: done.append(str(path)))
    monkeypatch.setattr(publishing, "sync_directory", lambda path: done.append(str(path)))
    rename = os.rename

    def noted(old: Path, new: Path) -> None:
        done.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "rename", noted)

    with publish_directory(target) as folder:
        fill(folder, "new")
        (folder / "link").symlink_to("/etc/hostname")

    inside = [f"{folder}/a.txt", f"{folder}/b.txt", f"{folder}/inner/deep.txt", f"{folder}/inner", str(folder)]
    assert done == [*inside, "rename", str(target.parent)]


def test_directories_change_places(tmp_path: Path):
    """In one step, or it is an error."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()

    exchange(tmp_path / "one", tmp_path / "other")

    assert (os.listdir(tmp_path / "one"), os.listdir(tmp_path / "other")) == (["other"], ["one"])
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "none")


def test_where_directories_cannot_change_places_the_old_one_stays(target: Path, monkeypatch: pytest.MonkeyPatch):
    """Two renames would leave a moment with neither, so it is an error that says what to do."""
    publish_word(target, "old")
    monkeypatch.setattr(publishing.ctypes, "CDLL", lambda *_, **__: object())

    with pytest.raises(ConfigError, match="cannot be exchanged here; remove it, or give another directory"):
        publish_word(target, "new")

    assert whole(target) == "old"
    assert os.listdir(target.parent) == ["out"]


# Kills --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, "old"])
def test_killed_before_any_call_it_is_the_old_one_or_the_new_one(target: Path, before: str | None):
    """Before each call that changes a file or a directory, in turn; the next writer removes what was left."""
    outcomes: list[int] = []
    is_new: list[bool] = []

    def write() -> None:
        shutil.rmtree(target, ignore_errors=True)
        if before is not None:
            target.mkdir()
            fill(target, before)
        die_at_call(len(outcomes) + 1, also=[(publishing, "exchange")])
        publish_word(target, "new")

    while 0 not in outcomes:
        outcomes.append(in_child(write))
        assert whole(target) in (before, "new")
        is_new.append(whole(target) == "new")

    assert set(outcomes) == {0, -signal.SIGKILL}
    assert is_new == sorted(is_new)  # there is one moment when it becomes the new one
    assert 0 < sum(is_new) < len(is_new)
    assert os.listdir(target.parent) == ["out"]  # the last one, which nobody killed, left nothing of the others


def test_killed_at_any_moment_it_is_one_of_those_that_were_written(target: Path):
    """Writers that replace each other without end, killed by the clock."""
    publish_word(target, "0")

    def write_many() -> None:
        for i in range(100_000):
            publish_word(target, str(i))

    for i in range(times(20)):
        pid = fork(write_many)
        time.sleep(0.002 * (i % 10))
        kill(pid)
        assert whole(target) is not None

    publish_word(target, "last")
    assert whole(target) == "last"
    assert os.listdir(target.parent) == ["out"]


def test_leftovers_of_a_killed_writer_are_removed_by_the_next(target: Path):
    """Those for the same target: nobody else's are touched."""
    names = [f".{name}.{'0' * 16}.partial" for name in ("out", "other", "out.more")]
    for name in names:
        (target.parent / name).mkdir()
        (target.parent / name / "half").touch()

    publish_word(target, "new")

    assert sorted(os.listdir(target.parent)) == sorted([*names[1:], "out"])


def test_what_a_living_writer_writes_is_not_removed(target: Path):
    """Two writers for one target do not disturb each other; the later one stays."""
    with publish_directory(target) as folder:
        publish_word(target, "first")
        assert whole(target) == "first"
        fill(folder, "later")

    assert whole(target) == "later"
    assert os.listdir(target.parent) == ["out"]
