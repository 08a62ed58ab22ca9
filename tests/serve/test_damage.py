"""Damaged files in a queue: the right values, or an error that says so; never a wrong value, a lost batch or a crash.

Batch files are damaged by the thousand, and read in a child, so that one that ends the process is seen as what it is.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import CorruptDataError, LimitExceeded, PoolishError, QueueError
from poolish.files.checksums import SLOT_BYTES
from poolish.serve import purge_queue, queue_status, verify_queue
from poolish.transports.batch_file import BatchMetadata, decode, encode, read_file, read_metadata
from poolish.transports.directory_parts import read_meta
from poolish.transports.log import DirectoryLog
from poolish.transports.meta import QueueMeta
from tests.effort import IS_SOAK, times
from tests.faults import in_child
from tests.serve.damage import (
    DAMAGES,
    LABEL,
    consumer,
    counter_of,
    damaged,
    file_of,
    filled,
    flip,
    forged,
    header,
    marks_of,
    names,
    provider,
    replace,
    slot,
    snapshot,
    take,
    within,
    words,
)

ARRAYS = {
    "x": ("int64", np.arange(24).reshape(2, 12)),
    "weight": ("float32", np.linspace(0, 1, 10, dtype=np.float32).reshape(2, 5)),
    "mask": ("bool", np.array([[True, False, True]] * 2)),
}


def outcome(path: Path, whole: bytes) -> str:
    """How one damaged file is read: "right" or "told"; anything else is an assertion or the end of the process."""
    try:
        label, found = decode(read_file(path), path)
    except (CorruptDataError, LimitExceeded) as error:
        names(error, path)
        with pytest.raises((CorruptDataError, LimitExceeded)):
            decode(path.read_bytes(), path)
        return "told"
    assert path.read_bytes() == whole, "damage was not seen"
    assert label == LABEL
    assert {name: (dtype, array.tolist()) for name, (dtype, array) in found.items()} == {
        name: (dtype, array.tolist()) for name, (dtype, array) in ARRAYS.items()
    }
    return "right"


def check_label(path: Path, whole: bytes) -> None:
    """A label that is read alone is right too, or an error."""
    try:
        assert read_metadata(path) == LABEL, path.read_bytes()
    except CorruptDataError:
        assert path.read_bytes() != whole


def damage_many(tmp_path: Path, seed: int, n: int) -> Counter[str]:
    whole = b"".join(bytes(buffer) for buffer in encode(ARRAYS, LABEL))
    outcomes = tmp_path / "outcomes"

    def child() -> None:
        rng = random.Random(seed)
        path, seen = tmp_path / "batch.safetensors", Counter[str]()
        for i in range(n):
            content = damaged(rng, whole)
            path.write_bytes(content)
            try:
                seen[outcome(path, whole)] += 1
                check_label(path, whole)
            except BaseException:
                print(f"seed {seed}, damage {i}: {content!r}")
                raise
        outcomes.write_text(json.dumps(seen))

    assert in_child(child) == 0
    return Counter(json.loads(outcomes.read_text()))


def test_damaged_batch_files_are_told(tmp_path: Path):
    """Thousands of them, damaged in every way: never a crash, never a wrong value."""
    seed = random.randrange(2**32) if IS_SOAK else 1

    seen = damage_many(tmp_path, seed, times(2_000))

    assert seen.total() == times(2_000)
    assert set(seen) <= {"right", "told"}
    assert seen["told"] > 0.9 * times(2_000)


def test_damage_would_be_seen_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The control: without the checksum, wrong values come out, and the test above says so."""
    monkeypatch.setattr("poolish.transports.batch_file._check", lambda *_: None)
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr("sys.stderr", nowhere)
        monkeypatch.setattr("sys.stdout", nowhere)
        with pytest.raises(AssertionError):
            damage_many(tmp_path, 1, 300)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_consumer_hands_out_right_batches_only(tmp_path: Path, damage: Any, prefetch: int):
    """Through the whole path: either the batch, or a ``CorruptDataError`` and the batch in dead/."""
    rng = random.Random(damage.__name__)
    for i in range(times(4)):
        split = filled(tmp_path / str(i), 4)
        whole = file_of(split, 2).read_bytes()
        content = damage(rng, bytearray(whole))
        file_of(split, 2).write_bytes(content)

        with consumer(tmp_path / str(i), prefetch=prefetch) as reading:
            assert take(reading, 2) == [0, 1]
            if content == whole:
                assert take(reading, 2) == [2, 3]
                continue
            for _ in range(2):
                with pytest.raises(CorruptDataError, match="batch 2 of 'train'"):
                    reading.get_batch()
            assert reading.stats["train"]["position"] == 2
        assert (split / "dead" / "000000000002.safetensors").read_bytes() == content


# -- meta.json


def told_of(meta: QueueMeta) -> dict[str, Any]:
    return {**vars(meta), "schema": meta.schema.to_batch_schema()}


def test_every_flipped_bit_of_the_description_is_told(tmp_path: Path):
    """Of the queue's id, its limits and its split as well: the description is right to the letter, or an error."""
    split = filled(tmp_path, 1)
    path = split / "meta.json"
    whole, right = path.read_bytes(), told_of(read_meta(split))
    believed = []
    for place in range(len(whole)):
        for bit in range(8) if IS_SOAK else [place % 7]:
            path.write_bytes(whole)
            flip(path, place, bit)
            try:
                found = told_of(read_meta(split))
            except (CorruptDataError, LimitExceeded) as error:
                names(error, path)
                continue
            if found != right:
                believed.append(path.read_bytes()[max(0, place - 30) : place + 10])
    assert not believed


def test_a_damaged_description_is_told_to_all(tmp_path: Path):
    """Provider, consumer, status and verify: a ``CorruptDataError`` each, and nothing is changed by it."""
    split = filled(tmp_path, 2)
    whole = (split / "meta.json").read_bytes()
    rng = random.Random(0)
    for _ in range(times(30)):
        content = damaged(rng, whole)
        if content == whole:
            continue
        (split / "meta.json").write_bytes(content)
        before = snapshot(split)
        for use in (
            lambda: provider(tmp_path).open(),
            lambda: consumer(tmp_path).get_batch(),
            lambda: queue_status(tmp_path),
            lambda: verify_queue(tmp_path),
        ):
            with pytest.raises((CorruptDataError, LimitExceeded), match=r"meta\.json"):
                use()
        after = snapshot(split)
        assert {name: content for name, content in after.items() if "lock" not in name} == {
            name: content for name, content in before.items() if "lock" not in name
        }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def split_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled(tmp_path_factory.mktemp("queue"), 1)


@given(
    st.dictionaries(
        st.sampled_from(["format", "queue", "split", "schema", "batch_schema", "meta", "limits", "fingerprint"]),
        JSON,
        min_size=1,
    )
)
def test_any_json_in_the_description_is_told(split_once: Path, changes: dict[str, Any]):
    """A value of any kind in any place: the description or a ``CorruptDataError``, no other error."""
    folder = split_once.parent / "other"
    folder.mkdir(exist_ok=True)
    told = json.loads((split_once / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**told, **changes}))
    try:
        read_meta(folder)
    except (CorruptDataError, LimitExceeded):
        return


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"1", b"\xff", b'{"format": "poolish.queue"}', b"[" * 999]
)
def test_a_queue_whose_description_is_damaged_can_be_purged(tmp_path: Path, content: bytes):
    """It is what the error advises, so it must work."""
    split = filled(tmp_path, 2)
    (split / "meta.json").write_bytes(content)
    with pytest.raises((CorruptDataError, LimitExceeded)):
        queue_status(tmp_path)

    assert purge_queue(split) == {"train": 2}
    assert not split.exists()
    with provider(tmp_path) as filling:
        assert filling.publish("train") == 0


# -- notes that heal


@pytest.mark.parametrize("what", ["removed", "empty", "short", "long", "zeros", "random", "flipped", "too low"])
def test_a_damaged_next_number_heals_from_the_log(tmp_path: Path, what: str):
    """Numbers stay gapless and unique, also where everything is consumed, and for a provider that is running."""
    split = filled(tmp_path, 5)
    contents = {
        "empty": b"",
        "short": words(5)[:9],
        "long": words(5) + b"more",
        "zeros": bytes(16),
        "random": random.Random(0).randbytes(16),
        "flipped": bytes([words(5)[0] ^ 4]) + words(5)[1:],
        "too low": words(2),
    }

    def damage() -> None:
        if what == "removed":
            (split / "next").unlink(missing_ok=True)
        else:
            (split / "next").write_bytes(contents[what])

    with provider(tmp_path) as filling:
        damage()
        assert filling.publish("train") == 5
    damage()
    with provider(tmp_path) as filling:
        assert filling.publish("train") == 6
    with consumer(tmp_path) as reading:
        assert take(reading, 7) == list(range(7))
    damage()
    with provider(tmp_path) as filling, consumer(tmp_path) as reading:
        assert filling.publish("train") == 7
        assert take(reading, 1) == [7]
    assert queue_status(tmp_path)["train"].published == 8


def test_random_damage_to_notes_heals_or_is_told(tmp_path: Path):
    """To one note at a time. The batches come in order and each at least once, or an error names the file."""
    rng = random.Random(2)
    seen = Counter[str]()
    for i in range(times(60)):
        path = tmp_path / str(i)
        split = filled(path, 24)
        with consumer(path) as reading:
            take(reading, 20)
        mark = f"marks/{marks_of(split).name}/0"
        notes = ["next", "consumed", "run.json", mark, "providers/w0.json", "lock", "providers/w0.lock"]
        name = notes[i % len(notes)]
        (split / name).write_bytes(damaged(rng, (split / name).read_bytes()))
        try:
            with provider(path) as filling:
                assert [filling.publish("train") for _ in range(2)] == [24, 25]
            with consumer(path) as reading:
                first = reading.get_batch()
                start = counter_of(first)
                assert start <= 20, "unread batches were skipped"
                assert take(reading, 25 - start) == list(range(start + 1, 26))
                seen[f"{name} from {start}"] += 1
        except CorruptDataError as error:
            names(error, name)
            seen[f"{name} told"] += 1
        shutil.rmtree(path)
    # All but one are notes of what the log knows too.
    assert {place for place in seen if not place.startswith(("run.json", "marks", "consumed"))} <= {
        f"{name} from 20" for name in ("next", "providers/w0.json", "lock", "providers/w0.lock")
    }


def test_a_flipped_bit_of_the_run_loses_nothing(tmp_path: Path):
    """``run.json`` says where the newest run began; believed when wrong, it would delete what nobody has read."""
    for i, (old, new) in enumerate([('"start": 0', '"start": 8'), ('"start": 0', '"start": 4')]):
        path = tmp_path / str(i)
        split = filled(path, 20)
        with consumer(path) as reading:
            take(reading, 3)
        replace(split / "run.json", old, new)

        try:
            with consumer(path) as reading:
                assert take(reading, 1)[0] <= 3
        except CorruptDataError as error:
            names(error, "run.json")
        assert file_of(split, 3).exists()


def test_a_flipped_bit_of_the_run_does_not_flood_the_queue(tmp_path: Path):
    """Nor does a provider believe that everything was read."""
    split = filled(tmp_path, 8)
    with consumer(tmp_path) as reading:
        take(reading, 3)
        replace(split / "run.json", '"start": 0', '"start": 8')
        with provider(tmp_path, max_backlog=5) as filling:
            try:
                assert filling.status()["train"]["backlog"] == 5
            except CorruptDataError as error:
                names(error, "run.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [('"counter": 5', '"counter": 7'), ('"counter": 5', '"counter": 1'), ('"number": 5', '"number": 7')],
)
def test_a_flipped_bit_of_a_providers_note_changes_nothing(tmp_path: Path, old: str, new: str):
    """The log knows better how many batches there are."""
    split = filled(tmp_path, 5)
    replace(split / "providers" / "w0.json", old, new)

    with provider(tmp_path) as filling:
        assert filling.batch_number("train") == 5
        filling.publish("train")
    with consumer(tmp_path) as reading:
        assert take(reading, 6) == list(range(6))


def test_a_providers_note_that_is_lost_heals_from_the_watermark(tmp_path: Path):
    """Also when none of its batches is left in the log."""
    split = filled(tmp_path, 5)
    with consumer(tmp_path) as reading:
        take(reading, 5)
    (split / "providers" / "w0.json").unlink()

    with provider(tmp_path) as filling:
        assert filling.batch_number("train") == 5


@pytest.mark.parametrize("n_corrupt", [1, 3])
def test_the_label_of_a_damaged_batch_is_not_believed(tmp_path: Path, n_corrupt: int):
    """Its counter may be what was damaged: whoever counts by it would leave batches out."""
    split = filled(tmp_path, 6)
    replace(file_of(split, n_corrupt), f'"counter":"{n_corrupt}"', '"counter":"9"')

    zero, one = (consumer(tmp_path, on_corrupt="cached", rank=rank, world_size=2) for rank in range(2))
    with zero, one:
        for _ in range(3):
            zero.get_batch()
            one.get_batch()

    with provider(tmp_path) as filling:
        assert filling.batch_number("train") == 6


def test_one_damaged_slot_of_the_watermark_heals(tmp_path: Path):
    """The one before it holds, the marks know the rest, and no batch comes again."""
    for i, damage in enumerate(["newest", "oldest"]):
        path = tmp_path / damage
        split = filled(path, 40)
        with consumer(path) as reading:
            take(reading, 35)
        consumed = split / "consumed"
        slots = [consumed.read_bytes()[start : start + SLOT_BYTES] for start in (0, SLOT_BYTES)]
        newest = max((0, 1), key=lambda j: turn_of(slots[j]))
        flip(consumed, SLOT_BYTES * (newest if damage == "newest" else 1 - newest) + 20, i)

        with provider(path) as filling:
            assert filling.publish("train") == 40
        with consumer(path) as reading:
            assert take(reading, 6) == list(range(35, 41))
        assert queue_status(path)["train"].acknowledged == 41
        assert verify_queue(path) == {"train": []}


def turn_of(content: bytes) -> int:
    length = int.from_bytes(content[:8], "little")
    return int(json.loads(content[16 : 16 + length])["turn"]) if length else 0


def test_both_slots_damaged_are_told(tmp_path: Path):
    """Nobody guesses what was consumed."""
    split = filled(tmp_path, 40)
    with consumer(tmp_path) as reading:
        take(reading, 35)
    for start in (0, SLOT_BYTES):
        flip(split / "consumed", start + 20)

    for use in (
        lambda: provider(tmp_path).open(),
        lambda: consumer(tmp_path).get_batch(),
        lambda: queue_status(tmp_path),
        lambda: verify_queue(tmp_path),
    ):
        with pytest.raises(CorruptDataError, match=r"consumed: nothing in it can be read; .*purge"):
            use()
    assert purge_queue(tmp_path) == {"train": 5}


@pytest.mark.parametrize("what", ["removed", "empty", "cut", "random", "flipped"])
def test_a_damaged_mark_counts_from_the_watermark(tmp_path: Path, what: str):
    """What was read since then comes again; what is deleted is not waited for, and nothing is left out."""
    split = filled(tmp_path, 30)
    with consumer(tmp_path) as reading:
        take(reading, 20)
        mark = marks_of(split) / "0"
        assert mark.read_bytes() == words(20, 19, 0)
        on_disk = [number for number in range(30) if file_of(split, number).exists()]
    contents = {"empty": b"", "cut": words(20, 20, 0)[:10], "random": random.Random(1).randbytes(24)}
    if what == "removed":
        mark.unlink()
    elif what == "flipped":
        flip(mark, 0)
    else:
        mark.write_bytes(contents[what])

    with consumer(tmp_path) as reading:
        start = take(reading, 1)[0]
        assert on_disk[0] <= start <= 20
        assert take(reading, 29 - start) == list(range(start + 1, 30))


def test_marks_of_other_ranks_that_are_damaged_delete_nothing(tmp_path: Path):
    """Rank 0 deletes by the lowest mark; one that cannot be read is at the start of the run."""
    split = filled(tmp_path, 40)
    with consumer(tmp_path, rank=0, world_size=2) as zero, consumer(tmp_path, rank=1, world_size=2) as one:
        assert take(zero, 1) == [0]
        assert take(one, 1) == [1]
        mark = marks_of(split) / "1"
        mark.write_bytes(b"")
        take(zero, 19)
        assert file_of(split, 1).exists()
        take(one, 19)


# -- what a hostile writer can do, whose checksums are right


HUGE = [2**40, 2**60, 2**63, 2**64 - 1]


@pytest.mark.parametrize("number", HUGE)
def test_a_forged_next_number_ends_in_bounded_time(tmp_path: Path, number: int):
    """A number far beyond the log is not believed, or an error of ours; no hang, no other error."""
    split = filled(tmp_path, 3)
    (split / "next").write_bytes(words(number))
    with within(10):
        try:
            with provider(tmp_path) as filling:
                filling.publish("train")
            with consumer(tmp_path, timeout_s=0.2) as reading:
                take(reading, 3)
            queue_status(tmp_path)
        except PoolishError:
            pass


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize("place", ["mark", "run", "watermark"])
def test_a_forged_position_ends_in_bounded_time(tmp_path: Path, number: int, place: str):
    """Batches that never were cannot be done; whoever says so is not believed, and no unread batch is deleted."""
    split = filled(tmp_path, 5)
    with consumer(tmp_path) as reading:
        take(reading, 2)
    if place == "mark":
        (marks_of(split) / "0").write_bytes(words(number, number, 0))
    elif place == "run":
        (split / "run.json").write_text(json.dumps({"start": number, "world_size": 1}))
    else:
        text = json.dumps({"watermark": number, "counters": {}, "turn": 9}).encode()
        (split / "consumed").write_bytes(slot(text).ljust(SLOT_BYTES, b"\0") + slot(text))

    with within(10):
        for use in (
            lambda: provider(tmp_path).open().close(),
            lambda: take(consumer(tmp_path, timeout_s=0.2), 1),
            lambda: queue_status(tmp_path),
            lambda: verify_queue(tmp_path),
        ):
            try:
                use()
            except PoolishError:
                pass
    if place != "watermark":
        assert file_of(split, 3).exists()


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        b"[" * 4_000,
        b"{}",
        b"[]",
        b'{"turn": 9}',
        b'{"turn": "9", "watermark": 1, "counters": {}}',
        b'{"turn": 9, "watermark": -1, "counters": {}}',
        b'{"turn": 9, "watermark": 1.5, "counters": {}}',
        b'{"turn": 9, "watermark": true, "counters": {}}',
        b'{"turn": 9, "watermark": 1, "counters": []}',
        b'{"turn": 9, "watermark": 1, "counters": {"w0": "1"}}',
        b'{"turn": 9, "turn": 9, "watermark": 1, "counters": {}}',
        b'{"turn": 9' + b"9" * 5_000 + b', "watermark": 1, "counters": {}}',
    ],
    ids=range(13),
)
@pytest.mark.parametrize("both", [True, False])
def test_a_forged_watermark_is_told(tmp_path: Path, text: bytes, both: bool):
    """Text of any kind that proves itself: a ``CorruptDataError``, or the other slot."""
    split = filled(tmp_path, 3)
    with consumer(tmp_path) as reading:
        take(reading, 2)
    consumed = (split / "consumed").read_bytes()
    other = slot(text) if both else consumed[SLOT_BYTES:]
    (split / "consumed").write_bytes(slot(text).ljust(SLOT_BYTES, b"\0") + other)
    log = DirectoryLog.open(split)
    try:
        log.consumed()
    except CorruptDataError as error:
        names(error, "consumed")


def test_a_forged_header_too_long_to_be_told_is_told(tmp_path: Path):
    """The reason goes into a tombstone, which has limits of its own."""
    for i, (shape, text) in enumerate([("[" + "1," * 25_000 + "1]", ""), ("[2]", "\\ud800" * 9_000)]):
        path = tmp_path / str(i)
        split = filled(path, 2)
        meta = read_meta(split)
        tensors = f'"x{text}":{{"dtype":"I64","shape":{shape},"data_offsets":[0,16]}}'
        told = header(tensors, queue=meta.queue, schema=meta.schema.fingerprint)
        file_of(split, 0).write_bytes(forged(told, bytes(16)))

        with consumer(path) as reading:
            for _ in range(2):
                with pytest.raises(CorruptDataError, match="batch 0 of 'train'"):
                    reading.get_batch()
        with consumer(path, on_corrupt="cached") as reading:
            assert take(reading, 2) == [1, 1]


def test_a_valid_batch_of_other_fields_is_told(tmp_path: Path):
    """The checksum, the queue and the fingerprint may be right: what comes out fits the schema, or is an error."""
    split = filled(tmp_path, 6)
    meta = read_meta(split)
    right = {"a": ("int64", np.zeros((2, 3), np.int64)), "b": ("float32", np.zeros((2, 2), np.float32))}
    wrong = [
        {"a": right["a"]},
        {**right, "c": right["a"]},
        {"a": ("int64", np.zeros((3, 3), np.int64)), "b": right["b"]},
        {"a": ("int32", np.zeros((2, 3), np.int32)), "b": right["b"]},
        {"a": ("int64", np.zeros((2, 4), np.int64)), "b": right["b"]},
        {"a": ("int64", np.zeros((0, 3), np.int64)), "b": ("float32", np.zeros((0, 2), np.float32))},
    ]
    label = BatchMetadata(meta.queue, meta.schema.fingerprint, 2, "w0", 0)
    for number, columns in enumerate(wrong):
        file_of(split, number).write_bytes(b"".join(bytes(part) for part in encode(columns, label)))

    problems = verify_queue(tmp_path)["train"]
    with provider(tmp_path) as filling:
        filling.publish("train")
    with consumer(tmp_path, on_corrupt="cached") as reading:
        assert take(reading, 7) == [6] * 7
        assert reading.stats["train"]["replaced"] == 6
    assert len(problems) == 6


def test_a_batch_of_another_queue_is_told(tmp_path: Path):
    """A file that was copied from elsewhere is no batch of this queue, however whole it is."""
    split, other = filled(tmp_path / "one", 2), filled(tmp_path / "other", 2)
    shutil.copyfile(file_of(other, 0), file_of(split, 0))

    with consumer(tmp_path / "one") as reading, pytest.raises((QueueError, CorruptDataError), match="another queue"):
        reading.get_batch()
    assert len(verify_queue(tmp_path / "one")["train"]) == 1
