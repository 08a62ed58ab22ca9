"""Images, sound and CIFAR-10 from files made here."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.load.dataset import check_index, identity_of
from poolish.load.frozen import snapshot_rows
from poolish.load.media import CIFAR10, CLASSES, FOLDER, RECORD, RECORDS, AudioDataset, ImageFolder, VisionDataset
from poolish.load.text import TextDataset
from tests.load.files import cifar_files, make_audio, make_images


@pytest.fixture
def without(monkeypatch):
    """Makes a library look as if it were not installed."""
    real = builtins.__import__

    def hide(library: str) -> None:
        def missing(name, *rest):
            if name.split(".")[0] == library:
                raise ImportError(f"No module named {name!r}")
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", missing)

    return hide


# Images ---------------------------------------------------------------------------------------------------------


def test_images_are_what_was_written(tmp_path: Path):
    """Exactly, with the label of their folder, sorted by class and path."""
    from PIL import Image

    images = make_images(tmp_path)

    assert images.classes == ["cat", "dog"]
    assert [sample["label"] for sample in images] == [0, 0, 1, 1, 1, 1]
    assert [Path(path).stem for path, _ in images.samples] == ["a", "b", "a", "b", "c", "z"]
    with Image.open(images.samples[4][0]) as image:
        assert np.array_equal(images[4]["image"], np.asarray(image))
    assert images[4]["image"].dtype == np.uint8
    assert images[4]["image"].flags.writeable


def test_images_come_in_the_mode_asked_for(tmp_path: Path):
    """Always three dimensions; or as PIL images."""
    assert make_images(tmp_path, mode="L")[0]["image"].shape == (5, 4, 1)
    assert make_images(tmp_path, mode="RGBA")[0]["image"].shape == (5, 4, 4)
    pil = make_images(tmp_path, output="pil")[0]["image"]
    assert (pil.size, pil.mode) == ((4, 5), "RGB")


def test_transforms_are_for_their_part(tmp_path: Path):
    """One sees the image, the other the label; errors name the row and the file."""
    images = make_images(tmp_path, transform=lambda image: image.astype(np.float32) / 255, target_transform=str)
    assert images[0]["image"].max() <= 1
    assert images[0]["label"] == "0"

    Path(images.samples[2][0]).write_bytes(b"no image")
    with pytest.raises(OSError, match="identify") as caught:
        images[2]
    assert any("dog/a.png" in note for note in caught.value.__notes__)
    assert any("row 2 of ImageFolder" in note for note in caught.value.__notes__)


def test_other_files_are_left_alone(tmp_path: Path):
    """Hidden ones, notes, and folders that are no class are not images."""
    make_images(tmp_path)
    for name in (".DS_Store", "cat/notes.txt", "cat/.hidden.png", ".git/x.png", "readme.md"):
        (tmp_path / "images" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "images" / name).write_bytes(b"")

    assert len(ImageFolder(tmp_path / "images")) == 6


def test_folders_without_images_are_an_error(tmp_path: Path):
    """A class that nobody meant would shift the labels of all after it."""
    with pytest.raises(FileNotFoundError, match="no such folder"):
        ImageFolder(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no folders"):
        ImageFolder(tmp_path)
    (tmp_path / "bird").mkdir()
    with pytest.raises(FileNotFoundError, match=r"bird: no images.*remove"):
        ImageFolder(tmp_path)
    with pytest.raises(ConfigError, match="mode='CMYK'"):
        ImageFolder(tmp_path, mode="CMYK")
    with pytest.raises(ConfigError, match="transform"):
        ImageFolder(tmp_path, transform=3)


def test_changed_images_are_another_version(tmp_path: Path):
    """Of the same files, in another process, it is the same."""
    first, again = make_images(tmp_path), ImageFolder(tmp_path / "images")
    assert first.version == again.version
    assert identity_of(first) == identity_of(again) != identity_of(make_images(tmp_path, transform=np.array))

    Path(first.samples[0][0]).write_bytes(b"other")
    assert ImageFolder(tmp_path / "images").version != first.version


# Vision datasets of one's own ------------------------------------------------------------------------------------


class Squares(VisionDataset):
    """Gives whatever ``make`` makes of an image and a label."""

    def __init__(self, root, make=lambda image, label: (image, label), **transforms):
        super().__init__(root, **transforms)
        self.make = make

    def __len__(self):
        return 6

    def read(self, number):
        return self.make(np.full((2, 2, 3), number, np.uint8), number)


class Labelled(NamedTuple):
    image: np.ndarray
    label: int


def halved(image):
    return image / 2


def test_transforms_find_the_image_and_the_label_of_a_tuple(tmp_path: Path):
    """``transform`` is for the first value, ``target_transform`` for the second; a named tuple stays one."""
    image, label = Squares(tmp_path, transform=halved, target_transform=str)[-1]
    named = Squares(tmp_path, Labelled, transform=halved)[3]
    only_label = Squares(tmp_path, target_transform=str)[1]

    assert (image.max(), label) == (2.5, "5")
    assert isinstance(named, Labelled)
    assert (named.image.max(), named.label) == (1.5, 3)
    assert (only_label[0].dtype, only_label[1]) == (np.uint8, "1")


@pytest.mark.parametrize(
    ("make", "transforms", "message"),
    [
        (lambda image, label: image, {"transform": halved}, "transform needs a dict with 'image' or a tuple"),
        (lambda image, label: (image,), {"target_transform": str}, "target_transform needs .* is a tuple of 1"),
        (lambda image, label: {"img": image}, {"transform": halved}, r"value 'image', and this sample has \['img'\]"),
    ],
)
def test_a_transform_without_its_value_is_an_error(make, transforms, message, tmp_path: Path):
    """It is never silently left out."""
    with pytest.raises(SchemaError, match=message) as caught:
        Squares(tmp_path, make, **transforms)[2]

    assert any("row 2 of Squares" in note for note in caught.value.__notes__)


def test_transforming_leaves_what_was_read_alone(tmp_path: Path):
    """A ``read`` that returns a sample it holds returns the same one the next time."""
    held = {"image": np.full((2, 2, 3), 8, np.uint8)}
    squares = Squares(tmp_path, lambda image, label: held, transform=halved)

    assert [squares[0]["image"].max() for _ in range(2)] == [4, 4]


def test_a_vision_dataset_may_be_written_with_getitem(tmp_path: Path):
    """As torchvision's are; many rows at once are the same rows, also of a dataset that had a ``read``."""

    class Custom(VisionDataset):
        def __init__(self):
            self.asked = []  # and nothing else: calling the base class is not needed

        def __len__(self):
            return 6

        def __getitem__(self, index):
            self.asked.append(index)
            return self.transformed(({"n": check_index(index, 6)}, 0))

    class Loud(ImageFolder):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "loud": True}

    class LoudText(TextDataset):
        def __getitem__(self, index):
            return super().__getitem__(index)["text"] + "!"

    custom = Custom()
    make_images(tmp_path)
    loud = Loud(tmp_path / "images")
    (tmp_path / "text").write_text("a\nb\n")

    assert custom[-1] == ({"n": 5}, 0)
    assert custom.__getitems__([2, 3]) == [({"n": 2}, 0), ({"n": 3}, 0)]
    assert (custom.asked, len(custom.version)) == ([-1, 2, 3], 32)
    assert all(
        sample["loud"] for sample in [loud[0], *loud.__getitems__([0, -1]), *snapshot_rows(loud).fetch(np.arange(2))]
    )
    assert LoudText(tmp_path / "text").__getitems__([1, 0]) == ["b!", "a!"]
    with pytest.raises(TypeError, match="no read; call dataset"):
        custom.read(0)


def test_a_vision_dataset_without_either_method_is_refused(tmp_path: Path):
    """When it is made, and the error says which methods there are."""

    class Custom(VisionDataset):
        def __len__(self):
            return 6

    with pytest.raises(TypeError, match=r"Custom cannot read.*read\(self, number\).*__getitem__\(self, index\)"):
        Custom(tmp_path)


# CIFAR-10 -------------------------------------------------------------------------------------------------------


def test_cifar_records_are_read_as_published(tmp_path: Path):
    """Label first, then the red, green and blue planes."""
    test, train = cifar_files(tmp_path), CIFAR10(tmp_path / FOLDER, train=True)
    record = np.fromfile(tmp_path / FOLDER / "data_batch_2.bin", np.uint8, RECORD)

    assert (len(test), len(train)) == (10_000, 50_000)
    assert isinstance(train, VisionDataset)
    sample = train[RECORDS]
    assert sample["label"] == record[0]
    assert sample["image"].shape == (32, 32, 3)
    assert sample["image"][5, 7].tolist() == [record[1 + c * 1024 + 5 * 32 + 7] for c in range(3)]
    assert test.classes[test[3]["label"]] == CLASSES[3]
    assert train[-1] == {"image": pytest.approx(np.zeros((32, 32, 3))), "label": 0}


def test_cifar_files_are_checked(tmp_path: Path):
    """Missing, cut off, or with a label that there is none for."""
    with pytest.raises(FileNotFoundError, match=r"cifar-10-binary\.tar\.gz into"):
        CIFAR10(tmp_path)
    cifar_files(tmp_path)
    path = tmp_path / FOLDER / "test_batch.bin"
    with path.open("r+b") as file:
        file.write(b"\x0a")
    with pytest.raises(CorruptDataError, match="label 10 of 10"):
        CIFAR10(tmp_path, train=False)[0]
    with path.open("r+b") as file:
        file.truncate(RECORD)
    with pytest.raises(CorruptDataError, match="3,073 bytes, not 30,730,000"):
        CIFAR10(tmp_path, train=False)


# Sound ----------------------------------------------------------------------------------------------------------


def test_sounds_are_what_was_written(tmp_path: Path):
    """Channels and frames, float32."""
    sounds = make_audio(tmp_path)

    assert [sample["audio"].shape for sample in sounds] == [(1, 400), (2, 800), (1, 1200), (2, 1600), (1, 2000)]
    stereo = sounds[1]
    assert stereo["audio"].dtype == np.float32
    assert stereo["audio"].flags.c_contiguous
    assert stereo["rate"] == 8000
    assert stereo["path"].endswith("1.wav")
    written = np.linspace(-0.5, 0.5, 1600).reshape(-1, 2).astype(np.float32)
    assert np.array_equal(stereo["audio"], written.T)


def test_a_part_of_a_sound_is_that_part(tmp_path: Path):
    """From an offset, for a duration; what lies beyond the end is not there."""
    whole, part = make_audio(tmp_path), make_audio(tmp_path, offset_s=0.1, duration_s=0.05)

    assert [sample["audio"].shape[1] for sample in part] == [0, 0, 400, 400, 400]
    assert np.array_equal(part[3]["audio"], whole[3]["audio"][:, 800:1200])
    assert identity_of(part) != identity_of(whole)


def test_sounds_can_be_listed(tmp_path: Path):
    """In the order given."""
    paths = make_audio(tmp_path).paths

    listed = AudioDataset([paths[3], paths[0]], transform=np.abs)

    assert listed[0]["path"] == paths[3]
    assert listed[0]["audio"].min() >= 0
    for source, match in (([], "no sound files"), ([tmp_path / "x.wav"], "x.wav: no such file")):
        with pytest.raises(FileNotFoundError, match=match):
            AudioDataset(source)
    with pytest.raises(ConfigError, match="duration_s=0"):
        AudioDataset(tmp_path, duration_s=0)


# Missing libraries ----------------------------------------------------------------------------------------------


def test_missing_libraries_name_the_extra(tmp_path: Path, without):
    """What to install, said when the dataset is made."""
    without("soundfile")
    with pytest.raises(ImportError, match=r"poolish\[audio\]"):
        AudioDataset(tmp_path)
    without("PIL")
    with pytest.raises(ImportError, match=r"poolish\[image\]"):
        ImageFolder(tmp_path)
