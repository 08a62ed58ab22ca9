"""Two datasets share a disk cache only if they have the same samples; others are refused or kept apart."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poolish import DatasetBuffer, DatasetRecipe, StreamStore
from poolish.errors import ConfigError, CorruptDataError, ResumeError, Unfingerprintable
from poolish.guards import Faults
from poolish.load import Loader
from poolish.load.base import BaseDataset
from poolish.load.cached import CachedDataset
from poolish.load.dataset import Dataset, check_index
from poolish.load.media import CIFAR10, AudioDataset, ImageFolder
from poolish.load.shards import HorizontalShard, VerticalShard
from poolish.load.text import TextDataset
from poolish.load.views.composite import CompositeDataset
from poolish.load.views.filtered import FilteredDataset
from poolish.load.views.single import (
    AdaptedDataset,
    ResilientDataset,
    ShuffledDataset,
    SubsettedDataset,
    TransformedDataset,
)
from tests.load.files import cifar_files, make_audio, make_images


def scale(sample: Any, k: int) -> Any:
    return sample * k


def scaled(k: int) -> Callable[[Any], Any]:
    return lambda sample: sample * k


def defaulted(k: int) -> Callable[[Any], Any]:
    return lambda sample, k=k: sample * k


class Scale:
    """A callable object, as transforms of images are."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, sample: Any) -> Any:
        return sample * self.k

    def method(self, sample: Any) -> Any:
        return sample * self.k


class Below:
    """A predicate with an attribute."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __call__(self, sample: Any) -> bool:
        return sample < self.end


class Powers(Dataset):
    """Rows that an attribute decides."""

    def __init__(self, power: int) -> None:
        self.power = power

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return (check_index(index, 4) + 2) ** self.power

    def whole(self, index: int) -> int:
        return self[index]

    def half(self, index: int) -> float:
        return self[index] / 2


class Labelled(Powers):
    """The same, with a version that was never raised."""

    version = "1"


class Foreign:
    """A dataset of another library."""

    def __init__(self, power: int) -> None:
        self.power = power

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return (index + 2) ** self.power


class Holding(Dataset):
    """A dataset around a view, of which it knows nothing."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def __getitem__(self, index: int) -> Any:
        return self.view[index]


class Locked(Powers):
    """A state that cannot be read."""

    def __init__(self, power: int) -> None:
        super().__init__(power)
        self.lock = threading.Lock()


class Declared(Locked):
    """The same, with a version of its own."""

    @property
    def version(self) -> str:
        return f"power {self.power}"


def below(end: int) -> Callable[[Any], bool]:
    return lambda sample: sample < end


def abs_of(rows: Any) -> Any:
    return TransformedDataset(rows, abs)


def columns(k: int) -> list[dict[str, int]]:
    return [{"a": 1, "b": 2, "c": 3}] * k


#: ``make(k)`` for two values of ``k``: datasets of the same classes that differ in one aspect, and in their samples.
ASPECTS: dict[str, Callable[[int], Any]] = {
    "a list": lambda k: [k, 2, 3],
    "a range": lambda k: range(k, k + 4),
    "text": lambda k: "abcd"[k:],
    "an array": lambda k: np.array([1, k, 3]),
    "the dtype of an array": lambda k: np.array([1, 2, 3], f"i{2**k}"),
    "an attribute of a dataset": Powers,
    "an attribute beside a version": Labelled,
    "an attribute of a foreign dataset": Foreign,
    "a version of its own": Declared,
    "an argument of a partial": lambda k: TransformedDataset([1, 2], functools.partial(scale, k=k)),
    "a closure": lambda k: TransformedDataset([1, 2], scaled(k)),
    "a default": lambda k: TransformedDataset([1, 2], defaulted(k)),
    "an attribute of a callable object": lambda k: TransformedDataset([1, 2], Scale(k)),
    "the object of a method": lambda k: TransformedDataset([1, 2], Scale(k).method),
    "what is transformed": lambda k: TransformedDataset([k, 2], abs),
    "the version of a function": lambda k: TransformedDataset([1, 2], lambda n, k=k: n * k, version=k),
    "the seed of a transform": lambda k: TransformedDataset([1, 2], lambda n, rng: float(rng.random()), seed=k),
    "the closure of a predicate": lambda k: FilteredDataset(range(1, 9), lambda n: n % (k + 1) == 0),
    "the attribute of a predicate": lambda k: FilteredDataset(range(9, 0, -1), Below(k + 5)),
    "what is filtered": lambda k: FilteredDataset(range(k, 9), below(7)),
    "the order of parts": lambda k: CompositeDataset([[1, 2, 3], [4, 5, 6]][:: (1, -1)[k - 1]]),
    "where parts end": lambda k: CompositeDataset([[1] * k + [2], [3] * (3 - k) + [4]]),
    "the weights of parts": lambda k: CompositeDataset([range(9), range(20, 40)], weights=[1, k]),
    "the seed of a mixture": lambda k: CompositeDataset([range(9), range(20, 40)], weights=[1, 1], seed=k),
    "a subset": lambda k: SubsettedDataset(range(9), [k, 2]),
    "what a subset is of": lambda k: SubsettedDataset([k, 2], [0, 1]),
    "a seed": lambda k: ShuffledDataset(range(99), seed=k),
    "a shard": lambda k: HorizontalShard(k - 1, 2)(range(8)),
    "columns": lambda k: VerticalShard(["a", "b"] if k == 1 else ["b", "c"])(columns(3)),
    "the object of an adapter": lambda k: AdaptedDataset([k, 2], length=len, get=lambda rows, n: rows[n]),
    "a way into an adapter": lambda k: AdaptedDataset([1, 2], length=len, get=lambda rows, n: rows[n] * k),
    "the method of an adapter": lambda k: AdaptedDataset(Powers(2), length="__len__", get=("whole", "half")[k - 1]),
    "a view in a user's dataset": lambda k: Holding(SubsettedDataset(range(9), [k, 2])),
    "an epoch in a user's dataset": lambda k: Holding(ShuffledDataset(range(99), seed=k)),
    "a retried dataset": lambda k: ResilientDataset([k, 2]),
    "a cached dataset": lambda k: CachedDataset([k, 2]),
    "two caches": lambda k: TransformedDataset(CachedDataset(range(k, 5)), scaled(k)),
}


def rows_of(dataset: Any) -> list[Any]:
    found = [dataset[i] for i in range(len(dataset))]
    return [repr(row) for row in found]


@pytest.mark.parametrize("aspect", ASPECTS)
def test_datasets_that_differ_never_share_rows(aspect: str, tmp_path: Path):
    """In one folder, each gets its own rows; made again, each finds what it has kept."""
    make = ASPECTS[aspect]
    for k in (1, 2, 1):
        assert rows_of(CachedDataset(make(k), path=tmp_path)) == rows_of(make(k)), k

    again = CachedDataset(make(2), path=tmp_path)
    rows_of(again)
    assert (again.stats.misses, again.stats.hits) == (0, len(again))


FILES: dict[str, Callable[[Path, int], Any]] = {
    "the transform of images": lambda root, k: ImageFolder(root / "images", Scale(k)),
    "the target transform of images": lambda root, k: ImageFolder(root / "images", None, scaled(k)),
    "the mode of images": lambda root, k: ImageFolder(root / "images", mode=("RGB", "L")[k - 1]),
    "a part of sounds": lambda root, k: AudioDataset(root, duration_s=0.01 * k),
    "repeated sounds": lambda root, k: AudioDataset([*sounds(root)[:1] * k, *sounds(root)[1:3]]),
    "the split of CIFAR": lambda root, k: SubsettedDataset(CIFAR10(root, train=k == 1), range(4)),
    "the unit of texts": lambda root, k: TextDataset(text_of(root), ("line", "document")[k - 1]),
    "the encoding of texts": lambda root, k: TextDataset(text_of(root), encoding=("utf-8", "latin-1")[k - 1]),
    "a transform of texts": lambda root, k: TextDataset(text_of(root), transform=scaled(k)),
    "a user's dataset of files": lambda root, k: Bytes(root, text_of(root), k),
}


def sounds(root: Path) -> list[Path]:
    return sorted(root.rglob("*.wav"))


def text_of(root: Path) -> Path:
    path = root / "loaves.txt"
    if not path.exists():
        path.write_text("rye\nöats\n\nspelt\n")
    return path


class Bytes(BaseDataset):
    """Every kth byte of a file."""

    def __init__(self, root: Path, path: Path, step: int) -> None:
        super().__init__(root)
        self.path, self.step = path, step

    def __len__(self) -> int:
        return 3

    def read(self, number: int) -> dict[str, Any]:
        return {"input": self.path.read_bytes()[number * self.step]}

    def files(self) -> list[Path]:
        return [self.path]


@pytest.mark.parametrize("aspect", FILES)
def test_datasets_of_files_that_differ_never_share_rows(aspect: str, tmp_path: Path):
    """Over the same files, their options and functions tell them apart; made again, each finds what it has kept."""
    make = FILES[aspect]
    make_images(tmp_path), make_audio(tmp_path), cifar_files(tmp_path)
    for k in (1, 2, 1):
        assert rows_of(CachedDataset(make(tmp_path, k), path=tmp_path / "cache")) == rows_of(make(tmp_path, k)), k

    again = CachedDataset(make(tmp_path, 2), path=tmp_path / "cache")
    rows_of(again)
    assert (again.stats.misses, again.stats.hits) == (0, len(again))


PROGRAM = """
import json, sys
from tests.load.test_identity import ASPECTS
from poolish.load.dataset import identity_of, version_of
found = {name: [[identity_of(make(k)), version_of(make(k))] for k in (1, 2)] for name, make in ASPECTS.items()}
print(json.dumps(found))
"""


def test_identities_are_the_same_in_every_process():
    """And two that differ do so everywhere."""
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PROGRAM]
        found.append(json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout))

    assert found[0] == found[1]
    assert [name for name, (one, other) in found[0].items() if one == other] == []


# What cannot be fingerprinted -----------------------------------------------------------------------------------------

LOCK, RNG = threading.Lock(), np.random.default_rng(0)

UNKNOWN: dict[str, Callable[[], Any]] = {
    "a dataset with a lock": lambda: Locked(2),
    "a function with a lock": lambda: TransformedDataset([1, 2], lambda n: n if LOCK else 0),
    "a predicate with a lock": lambda: FilteredDataset([1, 2], lambda n: bool(LOCK)),
    "an adapted lock": lambda: AdaptedDataset(Locked(2), length=len, get=lambda rows, n: rows[n]),
    "a part with a lock": lambda: CompositeDataset([[1], Locked(2)]),
    "a random generator": lambda: TransformedDataset([1], lambda n: n if RNG else 0),
    "too many values": lambda: list(range(1_100_000)),
    "substitutes": lambda: ResilientDataset([1, 2], faults=Faults(on_sample="neighbour", budget=2)),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_cannot_be_fingerprinted_asks_for_a_version(what: str, tmp_path: Path):
    """When the cache is opened; in memory, where rows belong to one object, nothing is asked."""
    make = UNKNOWN[what]
    assert CachedDataset(make())[0] == make()[0]

    with pytest.raises(Unfingerprintable, match=r"cannot be fingerprinted.*(version=1|cache below it)"):
        CachedDataset(make(), path=tmp_path)
    for version in (1, 2, 1):
        cached = CachedDataset(make(), path=tmp_path, version=version)
        assert cached[0] == make()[0]
    assert cached.stats.hits == 1


def test_each_view_takes_a_version(tmp_path: Path):
    """For what it adds itself; what it looks at is still seen."""
    for k in (1, 2):
        views = [
            TransformedDataset([k], lambda n: n if LOCK else 0, version=1),
            FilteredDataset([k], lambda n: bool(LOCK) or True, version=1),
            AdaptedDataset(Locked(k), length=len, get="__getitem__", version=k),
        ]
        for view in views:
            assert CachedDataset(view, path=tmp_path)[0] == view[0]


@pytest.mark.parametrize("version", [True, b"1", [1], object()])
def test_versions_are_text_or_numbers(version: Any):
    """Anything else is refused where it is passed."""
    for make in (CachedDataset, functools.partial(TransformedDataset, fn=abs)):
        with pytest.raises(ConfigError, match="version="):
            make([1], version=version)


def test_rows_that_a_list_got_later_are_not_kept_under_its_old_identity(tmp_path: Path):
    """Two lists that begin alike may go on differently, also below views."""
    for view in (
        list,
        abs_of,
        lambda rows: FilteredDataset(rows, below(9)),
        lambda rows: CompositeDataset([[0], rows]),
    ):
        for last in (3, 4):
            rows = [1, 2]
            dataset = rows if view is list else view(rows)
            cached = CachedDataset(dataset, path=tmp_path)
            rows.append(last)

            assert list(cached) == list(dataset)


def test_buffers_and_streams_are_identified_by_their_ids(tmp_path: Path):
    """Two buffers with equal rows may change differently."""
    for n in (1, 2):
        buffer = DatasetBuffer()
        buffer.append({"n": n})
        store = StreamStore(tmp_path / str(n), fields=["n"])
        store.append(steps=[0, 1], names=["n", "n"], values=[n, n])
        windows = store.as_dataset(2)

        assert CachedDataset(buffer, path=tmp_path / "cache")[0] == {"n": n}
        cached = CachedDataset(windows, path=tmp_path / "cache")[0]
        assert repr(cached) == repr(windows[0])
        store.close()


# Files that change ----------------------------------------------------------------------------------------------------


def replaced(path: Path, text: bytes) -> None:
    """Another file under the same name."""
    path.with_suffix(".new").write_bytes(text)
    path.with_suffix(".new").replace(path)


def rewritten(path: Path, text: bytes) -> None:
    """Other content in the same file."""
    path.write_bytes(text)


@pytest.mark.parametrize("change", [replaced, rewritten])
@pytest.mark.parametrize("when", ["before the first byte", "after one row", "after all rows"])
@pytest.mark.parametrize("text", [b"a long line\nanother\nthird\nfourth\n", b"xx\nyyy\nzzzzz\n", b"one\n"])
def test_a_text_file_that_changes_gives_its_lines_or_an_error(change, when: str, text: bytes, tmp_path: Path):
    """Never lines cut at the ends of other lines; and nothing of the new file is kept under the old version."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"ab\ncde\nfghij\n")
    old = [{"text": line} for line in ("ab", "cde", "fghij")]
    dataset = TextDataset(path)
    cached = CachedDataset(dataset, path=tmp_path / "cache")
    if when == "after one row":
        assert cached[0] == old[0]
    elif when == "after all rows":
        assert list(cached) == old

    change(path, text)

    for number in range(3):
        with pytest.raises(CorruptDataError, match=r"a\.txt: changed while the dataset was open; open the dataset"):
            dataset[number]
        try:
            assert cached[number] == old[number]
        except CorruptDataError:
            pass
    fresh = CachedDataset(TextDataset(path), path=tmp_path / "cache")
    assert [row["text"] for row in fresh] == text.decode().splitlines()


def test_a_last_line_that_goes_on_is_another_version(tmp_path: Path):
    """A cache does not keep the half of a line that was there first."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"rye\nspe")
    cached = CachedDataset(TextDataset(path))
    assert [row["text"] for row in cached] == ["rye", "spe"]

    with path.open("ab") as file:
        file.write(b"lt\noats\n")

    assert len(cached) == 3
    assert [row["text"] for row in cached] == ["rye", "spelt", "oats"]


def test_only_the_last_text_file_may_grow(tmp_path: Path):
    """Rows behind a file would get other numbers."""
    for name in "ab":
        (tmp_path / name).write_bytes(b"one\ntwo\n")
    dataset = TextDataset([tmp_path / "a", tmp_path / "b"])
    assert len(dataset) == 4

    with (tmp_path / "b").open("ab") as file:
        file.write(b"three\n")
    assert [row["text"] for row in dataset] == ["one", "two", "one", "two", "three"]
    with (tmp_path / "a").open("ab") as file:
        file.write(b"three\n")

    with pytest.raises(CorruptDataError, match="changed while the dataset was open"):
        dataset[0]


def test_an_image_that_changes_is_not_kept_under_the_old_version(tmp_path: Path):
    """Once a version was asked for, a file that is no longer the same is an error."""
    images = make_images(tmp_path)
    cached = CachedDataset(images, path=tmp_path / "cache")
    cached[0]
    first, second = (Path(path) for path, _ in images.samples[:2])
    second.write_bytes(first.read_bytes())

    with pytest.raises(CorruptDataError, match="changed while the dataset was open"):
        cached[1]
    fresh = CachedDataset(ImageFolder(images.root), path=tmp_path / "cache")
    assert repr(fresh[1]["image"]) == repr(cached[0]["image"])


def test_a_file_of_a_users_dataset_that_changes_is_an_error(tmp_path: Path):
    """Where it returns its files."""
    path = tmp_path / "a.bin"
    path.write_bytes(b"rye and oats")
    cached = CachedDataset(Bytes(tmp_path, path, 1), path=tmp_path / "cache")
    assert cached[0] == {"input": ord("r")}

    path.write_bytes(b"oats and rye")

    with pytest.raises(CorruptDataError, match=r"a\.bin: changed while the dataset was open"):
        cached[1]
    assert CachedDataset(Bytes(tmp_path, path, 1), path=tmp_path / "cache")[0] == {"input": ord("o")}


def test_another_transform_on_the_same_object_is_another_version(tmp_path: Path):
    """Also while a cache is open, in memory and on disk."""
    for place in ({}, {"path": tmp_path / "cache"}):
        texts = TextDataset(text_of(tmp_path), transform=str.upper)
        cached = CachedDataset(texts, **place)
        assert cached[0] == {"text": "RYE"}

        texts.transform = str.title

        assert cached[0] == {"text": "Rye"}


# Where a cache is -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["s3://bucket/cache", "gs://bucket", "simplecache::s3://bucket"])
def test_a_url_is_no_directory(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It would become a local one called ``s3:``, or not be found; the error says what takes URLs."""
    monkeypatch.chdir(tmp_path)
    recipe = DatasetRecipe("r").add_ingredient("a", [{"n": 1}])
    for make in (
        lambda: CachedDataset([1], path=url),
        lambda: recipe.bake(cache=url),
        lambda: recipe.explain(cache=url),
        lambda: recipe.save(f"{url}/r.yaml"),
        lambda: DatasetRecipe.load(f"{url}/r.yaml"),
        lambda: TextDataset(f"{url}/*.txt"),
        lambda: TextDataset([f"{url}/a.txt"]),
        lambda: ImageFolder(url),
        lambda: CIFAR10(url),
        lambda: AudioDataset(url),
        lambda: AudioDataset([f"{url}/a.wav"]),
    ):
        with pytest.raises(ConfigError, match="must be a local path; URLs are accepted by"):
            make()
    assert list(tmp_path.iterdir()) == []


def test_a_cache_of_an_earlier_poolish_is_not_read(tmp_path: Path):
    """Its keys did not tell datasets apart; it is taken over, and what it holds is evicted in time."""
    import hashlib

    from poolish.load.disk_cache import _file, encode

    (tmp_path / "cache.json").write_text('{"format": "poolish cache", "version": 1, "source": "builtins.list"}')
    key = hashlib.blake2b(b"\x000", digest_size=20).hexdigest()
    (tmp_path / f"{key}.sample").write_bytes(_file(encode("old"), key))

    cached = CachedDataset(["new"], path=tmp_path)

    assert cached[0] == "new"
    assert cached.stats.misses == 1
    (tmp_path / "cache.json").write_text('{"format": "poolish cache", "version": 99}')
    with pytest.raises(ConfigError, match="give another path"):
        CachedDataset(["new"], path=tmp_path)


# Resuming -------------------------------------------------------------------------------------------------------------


def test_a_loader_does_not_go_on_with_another_predicate():
    """Also where only the closure differs; a predicate that cannot be fingerprinted goes by its name."""
    state = Loader(FilteredDataset(range(9), below(5)), 2, output="numpy").state_dict()

    Loader(FilteredDataset(range(9), below(5)), 2, output="numpy").load_state_dict(state)
    with pytest.raises(ResumeError, match=r"choice.*version='[0-9a-f]+'"):
        Loader(FilteredDataset(range(9), below(6)), 2, output="numpy").load_state_dict(state)
    known = state["choice"].removeprefix("filtered ")
    Loader(FilteredDataset(range(9), below(6), version=known), 2, output="numpy").load_state_dict(state)
    Loader(FilteredDataset(range(9), lambda n: bool(LOCK)), 2, output="numpy").state_dict()
