"""Pictures: kept as PNG with exactly their pixels, and looked at before they are decoded."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageSequence

from poolish import DatasetBuffer
from poolish.errors import LimitExceeded, SchemaError
from poolish.rows.validate import Limits
from tests.rows.facts import facts

PIXELS = np.random.default_rng(0).integers(0, 256, (16, 12, 4), np.uint8)


def picture(mode):
    if mode in ("I", "I;16"):
        wide = PIXELS.astype(np.int32)[..., 0] * 257
        return Image.fromarray(wide if mode == "I" else wide.astype(np.uint16))
    return (
        Image.fromarray(PIXELS[..., :3]).convert(mode)
        if mode not in ("RGBA", "LA")
        else Image.fromarray(PIXELS).convert(mode)
    )


def file_of(image, form, cut=None, **options):
    sink = io.BytesIO()
    image.save(sink, form, **options)
    return io.BytesIO(sink.getvalue()[:cut])


def decoded(buffer, i=0):
    return Image.open(io.BytesIO(buffer[i]["image"]))


def header_of_png(width, height):
    """A whole PNG in a hundred bytes whose header promises any number of pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"])
@pytest.mark.parametrize(
    "wrap", [lambda image: image, lambda image: [image], lambda image: {"image": image}], ids=["one", "list", "row"]
)
def test_pixels_come_back(mode, wrap):
    """Every mode that PNG can hold keeps every pixel; whole 32-bit pixels come back in 16 bits where they fit."""
    image = picture(mode)
    buffer = DatasetBuffer()

    buffer.append(wrap(image))
    buffer.append(wrap(image))

    for i in range(2):
        back = decoded(buffer, i)
        assert back.format == "PNG"
        assert back.mode == ("I;16" if mode == "I" else mode)
        np.testing.assert_array_equal(np.asarray(back), np.asarray(image))


def test_palettes_and_their_transparent_colour_come_back():
    """Numbers in a palette mean nothing without it."""
    image = picture("P")
    image.info["transparency"] = image.getpixel((0, 0))
    buffer = DatasetBuffer()

    buffer.append(image)

    np.testing.assert_array_equal(np.asarray(decoded(buffer).convert("RGBA")), np.asarray(image.convert("RGBA")))
    assert decoded(buffer).convert("RGBA").getpixel((0, 0))[3] == 0


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_files_of_the_usual_formats_are_taken(form, tmp_path):
    """Opened lazily, they are decoded at append, so the file may go away."""
    path = tmp_path / "picture"
    file = file_of(picture("RGB"), form)
    expected = np.asarray(Image.open(file))
    path.write_bytes(file.getvalue())
    buffer = DatasetBuffer()

    with Image.open(path) as image:
        buffer.append(image)
    path.unlink()

    np.testing.assert_array_equal(np.asarray(decoded(buffer)), expected)


def test_a_picture_changed_after_append_does_not_reach_the_buffer():
    """Its PNG is made at once."""
    image = picture("RGB")
    buffer = DatasetBuffer()
    buffer.append(image)
    buffer.append(image)

    image.paste(0, (0, 0, 12, 16))

    np.testing.assert_array_equal(np.asarray(decoded(buffer, 1)), PIXELS[..., :3])


def test_a_generator_may_draw_into_one_picture_again_and_again():
    """Each sample is copied before the next is drawn."""

    def drawn(wrap):
        image = Image.new("L", (1, 1))
        for shade in (10, 20, 30):
            image.putpixel((0, 0), shade)
            yield wrap(image)

    for wrap in (lambda image: image, lambda image: {"image": image}):
        buffer = DatasetBuffer()
        buffer.append(drawn(wrap))

        assert [decoded(buffer, i).getpixel((0, 0)) for i in range(3)] == [10, 20, 30]


def psd():
    return io.BytesIO(b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 2, 2, 8, 3) + b"\0" * 40)


def fits():
    cards = ["SIMPLE  =                    T", "BITPIX  =                    8", "NAXIS   =                    2"]
    cards += ["NAXIS1  =                    2", "NAXIS2  =                    2", "END"]
    return io.BytesIO("".join(card.ljust(80) for card in cards).ljust(2880).encode() + b"\0" * 2880)


def frames(form):
    first, second = Image.new("L", (2, 2), 0), Image.new("L", (2, 2), 255)
    return file_of(first, form, save_all=True, append_images=[second])


def wide_pixel(value):
    return Image.fromarray(np.array([[value]], np.int32))


BAD = {
    "PSD": (lambda: Image.open(psd()), "PSD"),
    "FITS": (lambda: Image.open(fits()), "FITS"),
    "PPM": (lambda: Image.open(file_of(picture("RGB"), "PPM")), "PPM"),
    "animated GIF": (lambda: Image.open(frames("GIF")), r"one frame.*\.copy\(\)"),
    "TIFF of two pages": (lambda: Image.open(frames("TIFF")), "one frame"),
    "animated PNG": (lambda: Image.open(frames("PNG")), "one frame"),
    "mode CMYK": (lambda: picture("CMYK"), "mode CMYK.*convert"),
    "mode F": (lambda: picture("F"), "mode F.*convert"),
    "mode HSV": (lambda: picture("HSV"), "mode HSV.*convert"),
    "mode YCbCr": (lambda: picture("YCbCr"), "mode YCbCr.*convert"),
    "mode PA": (lambda: Image.new("PA", (1, 1)), "mode PA.*convert"),
    "mode RGBX": (lambda: Image.new("RGBX", (1, 1)), "mode RGBX.*convert"),
    "pixel above 16 bits": (lambda: wide_pixel(65536), "16 bits"),
    "pixel below 0": (lambda: wide_pixel(-1), "16 bits"),
    "no pixels": (lambda: Image.new("L", (0, 0)), "pixel"),
    "closed file": (lambda: _closed(file_of(picture("RGB"), "PNG")), "decoded"),
    "header only": (lambda: Image.open(io.BytesIO(header_of_png(12, 16))), "decoded"),
}


def _closed(file):
    image = Image.open(file)
    image.close()
    return image


@pytest.mark.parametrize("kind", BAD)
def test_a_picture_that_cannot_be_kept_exactly_is_refused(kind):
    """Other formats, several frames, inexact modes and unreadable files: SchemaError with row, column and advice."""
    for way in ["one", "many", "row", "pending row", "column"]:
        make, words = BAD[kind]
        buffer, good = DatasetBuffer(), picture("RGB")
        buffer.append(good if way in ("one", "many") else [{"image": good}])
        before = facts(buffer)

        with pytest.raises(SchemaError, match=words) as caught:
            _append(buffer, make(), way)

        assert facts(buffer) == before
        assert str(caught.value).startswith(f"row {2 if way in ('many', 'row') else 0}, column 'image': ")
        assert "; " in str(caught.value)


def _append(buffer, image, way):
    good = picture("RGB")
    if way == "column":
        buffer.append_columns({"image": [image]})
    elif way in ("one", "pending row"):
        buffer.append(image if way == "one" else {"image": image})
    else:
        buffer.append([good, good, image] if way == "many" else [{"image": good}, {"image": good}, {"image": image}])


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("is_lenient", [False, True])
def test_a_truncated_file_is_an_error_and_never_grey(form, is_lenient, monkeypatch):
    """Even where the process has told PIL to be lenient; and PIL stays as lenient as it was."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", is_lenient)
    image = Image.open(file_of(Image.fromarray(PIXELS[..., :3]).resize((64, 64)), form, cut=-600))
    buffer = DatasetBuffer()

    with pytest.raises(SchemaError, match=r"row 0, column 'image': .*decoded.*; "):
        buffer.append(image)

    assert facts(buffer) == facts(DatasetBuffer())
    assert ImageFile.LOAD_TRUNCATED_IMAGES is is_lenient


@pytest.mark.parametrize(("width", "height"), [(40_000, 30_000), (8_001, 8_000), (64_000_001, 1)])
def test_a_picture_that_claims_too_many_pixels_is_refused_before_it_is_decoded(width, height, monkeypatch, tmp_path):
    """The header alone decides, also from a file, also where PIL's own guard is switched off."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    path = tmp_path / "bomb.png"
    path.write_bytes(header_of_png(width, height))
    monkeypatch.setattr(Image.Image, "load", lambda image: pytest.fail("the picture was decoded"))
    buffer = DatasetBuffer()

    with (
        Image.open(path) as bomb,
        pytest.raises(LimitExceeded, match=r"row 0, column 'image': .*64,000,000 pixels") as caught,
    ):
        buffer.append({"image": bomb})

    assert isinstance(caught.value, ValueError)
    assert f"image_pixels={width * height}" in str(caught.value)
    assert facts(buffer) == facts(DatasetBuffer())


@pytest.mark.parametrize(
    ("limits", "mode", "is_kept"),
    [
        (Limits(image_pixels=16 * 12), "RGB", True),
        (Limits(image_pixels=16 * 12 - 1), "RGB", False),
        (Limits(image_bytes=16 * 12), "L", True),
        (Limits(image_bytes=16 * 12 - 1), "L", False),
        (Limits(image_bytes=16 * 12 * 2), "RGB", False),
    ],
)
def test_the_limits_are_those_of_the_buffer(limits, mode, is_kept):
    """Changed in code: pixels and decoded bytes."""
    buffer = DatasetBuffer(limits=limits)

    if is_kept:
        buffer.append(picture(mode))
    else:
        with pytest.raises(LimitExceeded, match="DatasetBuffer\\(limits=Limits\\("):
            buffer.append(picture(mode))

    assert len(buffer) == is_kept


def test_frames_can_be_appended_as_the_error_advises():
    """One picture per frame."""
    animation = Image.open(frames("GIF"))
    buffer = DatasetBuffer()

    buffer.append([frame.copy() for frame in ImageSequence.Iterator(animation)])

    assert len(buffer) == 2


def test_pictures_nested_in_lists_are_kept():
    """A list of pictures is a list of PNGs."""
    buffer = DatasetBuffer()

    buffer.append({"images": [picture("L"), picture("RGB")]})

    modes = [Image.open(io.BytesIO(data)).mode for data in buffer[0]["images"]]
    assert modes == ["L", "RGB"]
