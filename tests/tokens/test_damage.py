"""Files that were damaged: healed with exactly the right values, or a ``CorruptDataError``; never a wrong value.

Each damaged copy is opened, verified and read in a child, many copies a child, so that one that ends the process is
seen as what it is.
"""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from poolish import MemmapBuffer, StreamStore
from poolish.errors import CorruptDataError
from poolish.tokens import memmap_buffer
from tests.effort import IS_SOAK, times
from tests.faults import in_child
from tests.tokens import recordings
from tests.tokens.recordings import FIELDS, append, append_many, assert_holds

N_STEPS, N_COMMITS = 120, 4
FILES = ["store.json", "data", "index", "types", "head", "commits", "branches", "lock"]


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    """Files of a few pages, so that damage hits what counts."""
    monkeypatch.setattr(memmap_buffer, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(memmap_buffer, "RESERVED", 1 << 16)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def stream(tmp_path) -> Path:
    """A stream of several commits, each by a writer of its own, all of it committed."""
    path = tmp_path / "stream"
    for i in range(N_COMMITS):
        with StreamStore(path, FIELDS) as store:
            first, end = i * N_STEPS // N_COMMITS, (i + 1) * N_STEPS // N_COMMITS
            append_many(store, first, end - 3)
            append(store, end - 3, end)
    return path


def expected_steps(n_steps: int) -> list[dict]:
    types, values = recordings.tokens(0, n_steps)
    numbers, steps = values.view(np.float64), []
    for type_, number in zip(types.tolist(), numbers.tolist(), strict=True):
        if type_ == recordings.ACTION:
            steps.append({"action": number, "observation": []})
        elif type_ == recordings.OBSERVATION:
            steps[-1]["observation"].append(number)
        else:
            steps[-1]["done"] = number
    return steps


EXPECTED = recordings.tokens(0, N_STEPS)
STEPS = expected_steps(N_STEPS)
BREAKS = [i * N_STEPS // N_COMMITS for i in range(1, N_COMMITS)]
SHORTER = {i * N_STEPS // N_COMMITS for i in range(N_COMMITS)}


def look(path: Path, mode: str) -> str:
    """What one sees who opens a stream, verifies it and reads it: "right", or the name of the error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store = StreamStore.open(path, mode=mode)
    except (CorruptDataError, FileNotFoundError) as error:
        return type(error).__name__
    with store:
        read_anything(store)
        try:
            store.verify()
        except CorruptDataError as error:
            return type(error).__name__
        if store.n_steps in SHORTER and store.first == 0:
            assert_holds(store, recordings.tokens(0, store.n_steps))
            return "shorter"
        assert_right(store)
        assert store.verify().tokens == len(EXPECTED[0])
    return "right"


def assert_right(store: StreamStore) -> None:
    assert_holds(store, EXPECTED)
    steps = list(store.steps())
    assert [step.number for step in steps] == list(range(N_STEPS))
    assert [{name: np.asarray(value).tolist() for name, value in step.items()} for step in steps] == STEPS
    assert store._view().breaks().tolist() == BREAKS
    starts = np.arange(0, store.end - 7, 5)
    assert np.array_equal(store.windows(starts, 7)["values"], EXPECTED[1][starts[:, None] + np.arange(7)])


def read_anything(store: StreamStore) -> None:
    """Who does not verify may read anything, but lives."""
    try:
        store[:]
        list(store.steps())
        store.sample(4, 5, rng=np.random.default_rng(0), start="step")
    except (CorruptDataError, ValueError, IndexError):
        pass


def damage_and_look(
    stream: Path, damages: list[tuple[str, Callable[[Path], object]]], *, allowed: tuple[type, ...] = ()
) -> Counter[str]:
    """Damage a copy in each way, look at it as a reader and as a writer, in children; how often it ended how."""
    outcomes = stream.parent / "outcomes"

    def child(part):
        for name, damage in part:
            for mode in "ra":
                copy = stream.parent / "copy"
                copy_in_place(stream, copy)
                damage(copy)
                try:
                    seen = look(copy, mode)
                except allowed as error:
                    seen = type(error).__name__
                except BaseException:
                    print(f"damage: {name}, opened with mode {mode!r}")
                    raise
                if seen == "CorruptDataError" and mode == "a":
                    look(copy, "r")  # an error has repaired nothing half-way
                with open(outcomes, "a") as file:
                    file.write(f"{seen}\n")

    outcomes.unlink(missing_ok=True)
    for start in range(0, len(damages), 500):
        assert in_child(lambda start=start: child(damages[start : start + 500])) == 0
    return Counter(outcomes.read_text().split())


def copy_in_place(stream: Path, copy: Path) -> None:
    """A copy that is trusted like the stream itself."""
    copy.mkdir(exist_ok=True)
    for name in os.listdir(copy):
        target = copy / name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink()
    for name in FILES:
        shutil.copyfile(stream / name, copy / name)
    recordings.trust(copy)


def rewrite(name: str, change: Callable[[bytearray], object]) -> Callable[[Path], None]:
    """A damage that changes the content of a file where it is."""

    def damage(path: Path) -> None:
        content = bytearray((path / name).read_bytes())
        changed = change(content)
        content = content if changed is None else changed
        with open(path / name, "r+b") as file:
            file.write(content)
            file.truncate(len(content))

    return damage


def used(stream: Path, name: str) -> int:
    """How many bytes of a file mean something."""
    n_rows = len(EXPECTED[0]) and int(np.sum(2 + (np.arange(N_STEPS) % 5 == 4)))
    sizes = {"data": len(EXPECTED[0]) * 8, "index": n_rows * 24 + 8, "types": len(EXPECTED[0]), "head": 520}
    return sizes.get(name, (stream / name).stat().st_size)


def test_a_whole_copy_is_right(stream):
    """The harness itself does no damage."""
    assert damage_and_look(stream, [("nothing", lambda _: None)] * 3) == {"right": 6}


def test_a_flipped_bit_is_healed_or_told(stream):
    """In every file, wherever it is."""
    rng = random.Random(0)
    damages = []
    for _ in range(times(40)):
        for name in FILES[:-1]:
            place, bit = rng.randrange(used(stream, name)), rng.randrange(8)

            def flip(content, place=place, bit=bit):
                content[place] ^= 1 << bit

            damages.append((f"bit {bit} of byte {place} of {name}", rewrite(name, flip)))

    seen = damage_and_look(stream, damages)

    assert set(seen) == {"right", "CorruptDataError"}
    assert seen["right"] > times(40)


def test_every_bit_of_the_head_page(stream):
    """All that can be derived from the log is; nothing of the page is believed that does not prove itself."""
    words = {start + i for start in (64, 128, 192, 512) for i in range(8)} | {256, 257, 258}
    damages = []
    for place in range(520) if IS_SOAK else (*range(260), *range(512, 520)):
        for bit in range(8) if IS_SOAK or place in words else [place % 8][: place % 6 == 0]:

            def flip(content, place=place, bit=bit):
                content[place] ^= 1 << bit

            damages.append((f"bit {bit} of byte {place} of head", rewrite("head", flip)))

    seen = damage_and_look(stream, damages)

    assert set(seen) <= {"right", "CorruptDataError"}


@pytest.mark.parametrize("log", ["commits", "branches"])
def test_any_flipped_bit_of_a_log_is_healed(stream, log):
    """Each record is there twice; one of them is enough, so that it was healed is all there is to report."""
    size = (stream / log).stat().st_size
    newlines = [i for i, byte in enumerate((stream / log).read_bytes()) if byte == ord("\n")]
    damages = []
    for place in sorted({*range(0, size, 1 if IS_SOAK else 13), *newlines}):

        def flip(content, place=place):
            content[place] ^= 1 << place % 8

        damages.append((f"byte {place} of {log}", rewrite(log, flip)))

    seen = damage_and_look(stream, damages)

    assert set(seen) == {"right"}


@pytest.mark.parametrize("log", ["commits", "branches"])
def test_a_healed_line_is_counted(stream, log):
    """``verify`` says that a line of the log was damaged, and all is well."""
    rewrite(log, lambda content: content.__setitem__(30, 0))(stream)
    with StreamStore.open(stream) as reader:
        assert reader.verify().healed == 1


@pytest.mark.parametrize("log", ["commits", "branches"])
def test_both_lines_of_a_record_damaged_are_an_error(stream, log):
    """Whichever record it is."""
    lines = (stream / log).read_bytes().split(b"\n")
    lines = [line for line in lines if line]
    for i in range(1, len(lines) // 2):
        damaged = list(lines)
        damaged[2 * i] = damaged[2 * i + 1] = b"?" * 40
        (stream / log).write_bytes(b"\n".join(damaged) + b"\n")

        for mode in "ra":
            assert look(stream, mode) == "CorruptDataError"
    (stream / log).write_bytes(b"\n".join(lines) + b"\n")
    assert look(stream, "a") == "right"


@pytest.mark.parametrize("byte", [24, 64, 128, 192, 512], ids=["boot", "published", "first", "committed", "branches"])
def test_branches_that_are_missing_beside_a_damaged_head_are_an_error(stream, byte):
    """The newest commit knows how many there were, so no break is lost with the page that knows it too."""
    whole = (stream / "branches").read_bytes()
    last_record = whole.rindex(b"\n\n")  # its first line ends here, which is enough to prove it
    rewrite("head", lambda content: content.__setitem__(byte, content[byte] ^ 1))(stream)

    for n_bytes in [*range(0, last_record, last_record // times(4)), last_record - 1]:
        (stream / "branches").write_bytes(whole[:n_bytes])
        for mode in "ra":
            with (
                warnings.catch_warnings(action="ignore"),
                pytest.raises(CorruptDataError, match="4 branches were recorded"),
            ):
                StreamStore.open(stream, mode=mode)


def test_files_that_were_cut_are_healed_or_told(stream):
    """At many places, and at nothing at all."""
    rng = random.Random(1)
    damages = []
    for name in FILES:
        size = (stream / name).stat().st_size
        places = {0, 1, size - 1, used(stream, name) - 1} | {rng.randrange(size) for _ in range(times(12))}
        damages += [(f"{name} cut at {at}", rewrite(name, lambda content, at=at: content[:at])) for at in places]

    seen = damage_and_look(stream, damages)

    assert set(seen) == {"right", "CorruptDataError"}


def test_zeros_swapped_words_and_inserted_bytes_are_healed_or_told(stream):
    """What disks, copies and editors do to files."""
    rng = random.Random(2)
    damages = []
    for _ in range(times(6)):
        for name in FILES[:-1]:
            size = used(stream, name)
            start = rng.randrange(size)
            length = rng.choice([1, 8, 512, 4096])
            damages += [
                (f"{length} zeros at {start} of {name}", rewrite(name, zeroed(start, length))),
                (f"{length} random bytes at {start} of {name}", rewrite(name, scrambled(rng, start, min(length, 64)))),
                (f"swapped words of {name}", rewrite(name, swapped(rng, size))),
                (f"bytes inserted at {start} of {name}", rewrite(name, inserted(start, rng.randbytes(8)))),
                (f"bytes removed at {start} of {name}", rewrite(name, removed(start, 8))),
            ]

    seen = damage_and_look(stream, damages)

    assert set(seen) == {"right", "CorruptDataError"}


def zeroed(start, length):
    return lambda content: content[:start] + bytes(len(content[start : start + length])) + content[start + length :]


def scrambled(rng, start, length):
    noise = rng.randbytes(length)
    return lambda content: content[:start] + noise[: len(content) - start] + content[start + length :]


def inserted(start, more):
    return lambda content: content[:start] + more + content[start:]


def removed(start, length):
    return lambda content: content[:start] + content[start + length :]


def swapped(rng, size):
    a, b = (rng.randrange(size // 8) * 8 for _ in range(2))

    def swap(content):
        content[a : a + 8], content[b : b + 8] = content[b : b + 8], content[a : a + 8]

    return swap


@pytest.mark.parametrize("words", [(8, 16), (8, 24), (16, 24), (8, 5), (16, 40)])
def test_swapped_words_of_the_head_page(stream, words):
    """A number that proves itself in one place proves nothing in another."""

    def swap(content):
        a, b = (8 * word for word in words)
        content[a : a + 8], content[b : b + 8] = content[b : b + 8], content[a : a + 8]

    seen = damage_and_look(stream, [("swap", rewrite("head", swap))])

    assert set(seen) <= {"right", "CorruptDataError"}


@pytest.fixture
def other(tmp_path) -> Path:
    """A stream of the same fields, a bit longer, with other steps and values."""
    path = tmp_path / "other"
    with StreamStore(path, FIELDS) as store:
        for first in range(7, 7 + N_STEPS + 40, 40):
            append_many(store, first, first + 40, salt=1)
            store.commit()
    return path


@pytest.mark.parametrize("name", FILES[:-1])
def test_a_missing_or_strange_file_is_told_or_healed(stream, other, name):
    """Removed, or in its place a directory, a link, a pipe, nothing, or the file of another stream."""

    another_name = "index" if name == "data" else "data"

    def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
        def damage(path: Path) -> None:
            (path / name).unlink()
            make(path / name)

        return damage

    damages = {
        "removed": replaced(lambda _: None),
        "a directory": replaced(lambda file: file.mkdir()),
        "a link to the file": replaced(lambda file: file.symlink_to(stream / name)),
        "a link to nowhere": replaced(lambda file: file.symlink_to("/nowhere/at/all")),
        "a pipe": replaced(os.mkfifo),
        "empty": replaced(lambda file: file.touch()),
        "another stream's": replaced(lambda file: shutil.copyfile(other / name, file)),
        "another name's": replaced(lambda file: shutil.copyfile(stream / another_name, file)),
    }

    for what, damage in damages.items():
        seen = damage_and_look(stream, [(f"{name} is {what}", damage)])
        missing = {"FileNotFoundError"} if (name, what) == ("store.json", "removed") else set()
        assert set(seen) <= {"right", "CorruptDataError"} | missing, (what, seen)
        # Only what can be derived is put right.
        if name not in ("head", "types"):
            assert "right" not in seen, what


@pytest.mark.parametrize("what", ["removed", "a directory", "a link"])
def test_readers_need_no_lock_file(stream, what):
    """Whatever is there instead; and a writer gets an error if it cannot lock."""
    (stream / "lock").unlink()
    if what == "a directory":
        (stream / "lock").mkdir()
    elif what == "a link":
        (stream / "lock").symlink_to(stream / "data")

    assert look(stream, "r") == "right"
    if what == "removed":
        assert look(stream, "a") == "right"
    else:
        with pytest.raises(OSError, match="lock"):
            StreamStore.open(stream, mode="a")
    assert look(stream, "r") == "right"


def test_types_that_are_missing_are_right_again_as_soon_as_a_writer_has_opened(stream):
    """A lane that is too short is known to be damaged; nobody has to call ``verify`` to get right types."""
    for damage in (lambda file: file.unlink(), lambda file: os.truncate(file, 100), lambda file: os.truncate(file, 0)):
        damage(stream / "types")
        with StreamStore.open(stream, mode="a") as store:
            assert_right(store)
        assert look(stream, "r") == "right"


def test_a_writer_heals_types_and_a_reader_tells(stream):
    """What a reader cannot write it does not pretend."""
    rewrite("types", lambda content: content.__setitem__(50, 7))(stream)

    assert look(stream, "r") == "CorruptDataError"
    with StreamStore.open(stream, mode="a") as store:
        assert store.verify().healed == 1
    assert look(stream, "r") == "right"


def test_damage_that_is_told_changes_nothing(stream):
    """A writer that refuses a stream leaves every byte as it was, so that what is whole can still be restored."""
    for name in ("data", "index", "commits", "branches", "store.json"):
        whole = (stream / name).read_bytes()
        os.truncate(stream / name, 60)
        before = {file.name: file.read_bytes() for file in stream.iterdir() if file.name != "lock"}
        with pytest.raises(CorruptDataError):
            StreamStore.open(stream, mode="a")
        assert {file.name: file.read_bytes() for file in stream.iterdir() if file.name != "lock"} == before

        (stream / name).unlink()
        with pytest.raises((CorruptDataError, FileNotFoundError)):
            StreamStore.open(stream, mode="a")
        assert not (stream / name).exists()
        (stream / name).write_bytes(whole)
    assert look(stream, "a") == "right"


def test_many_damages_at_once(stream):
    """Several files, several places: right, or told, or what an older commit holds where the newest is gone twice."""
    rng = random.Random(3)

    def several(seed):
        def damage(path):
            rng = random.Random(seed)
            for name in rng.sample(FILES[:-1], 3):
                start = rng.randrange(used(stream, name))
                kinds = zeroed(start, 64), scrambled(rng, start, 8), removed(start, 1 << 20)
                rewrite(name, rng.choice(kinds))(path)

        return damage

    seeds = [rng.random() for _ in range(times(60))]
    seen = damage_and_look(stream, [(f"seed {seed}", several(seed)) for seed in seeds])

    assert set(seen) <= {"right", "shorter", "CorruptDataError"}


# Other names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES[1:])
def test_a_file_that_is_written_in_place_has_one_name(tmp_path, name):
    """An append would change its other name too, perhaps that of a backup (``cp -al``): the error names the file."""
    path, other = tmp_path / "stream", tmp_path / "other"
    recordings.make(path, 3)
    os.link(path / name, other)
    before = other.read_bytes()

    with pytest.raises(CorruptDataError, match=rf"{name}: has 2 names .*remove the other names"):
        StreamStore.open(path, mode="a")

    assert other.read_bytes() == before
    with StreamStore.open(path) as reader:  # which changes nothing
        n_steps = recordings.check(reader)
    other.unlink()
    with StreamStore.open(path, mode="a") as store:
        append(store, n_steps, n_steps + 1)


def test_a_memmap_buffer_appends_to_a_file_of_one_name(tmp_path):
    """The same for the growing array alone; reading it is allowed."""
    path = tmp_path / "rows"
    with MemmapBuffer(path) as buffer:
        buffer.append([1, 2, 3])
    os.link(path, tmp_path / "other")

    with pytest.raises(CorruptDataError, match="rows: has 2 names"):
        MemmapBuffer(path)

    with MemmapBuffer(path, mode="r") as buffer:
        assert buffer[:].tolist() == [1, 2, 3]
