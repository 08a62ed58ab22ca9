"""PIL images to PNG bytes, checked before they are decoded.

A header can promise a billion pixels in a hundred bytes, so size and format are looked at first; a truncated file is an
error, never grey pixels. Only modes that PNG holds exactly are taken.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from poolish.errors import LimitExceeded
from poolish.rows.limits import Limits
from poolish.rows.refusal import Refusal

FORMATS = frozenset({"PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"})
_EXACT_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"})
_DECODED_BYTES = {"1": 1, "L": 1, "P": 1, "LA": 2, "I;16": 2, "RGB": 4, "RGBA": 4, "I": 4}


def is_image(value: object) -> bool:
    """Whether this is a ``PIL.Image.Image``; nobody can hold one before PIL is loaded."""
    module = sys.modules.get("PIL.Image")
    return module is not None and isinstance(value, module.Image)


def encode(image: Any, limits: Limits) -> bytes:
    """The image as a PNG that decodes to exactly the same pixels."""
    _check_size(image, limits)
    _check_form(image)
    _load(image)
    if image.mode == "I":
        image = _in_16_bits(image)
    sink = io.BytesIO()
    image.save(sink, "PNG")
    return sink.getvalue()


def _in_16_bits(image: Any) -> Any:
    """32-bit grey values as the 16 bits that PNG has, where none is lost."""
    if not all(0 <= edge <= 65535 for edge in image.getextrema()):
        raise Refusal("PNG holds 16 bits a pixel", image, "convert it to 16 bits, or append np.asarray(image)")
    return image.convert("I;16")


def _check_size(image: Any, limits: Limits) -> None:
    n_pixels = image.width * image.height
    n_bytes = n_pixels * _DECODED_BYTES.get(image.mode, 4)
    if n_pixels > limits.image_pixels or n_bytes > limits.image_bytes:
        rule = f"an image has at most {limits.image_pixels:,} pixels and {limits.image_bytes:,} bytes decoded"
        larger = f"Limits(image_pixels={n_pixels}, image_bytes={n_bytes})"
        raise Refusal(rule, image, f"resize it, or raise the limit: DatasetBuffer(limits={larger})", LimitExceeded)


def _check_form(image: Any) -> None:
    if image.format is not None and image.format not in FORMATS:
        raise Refusal(f"images come from {', '.join(sorted(FORMATS))}", image, f"convert the {image.format} file first")
    if image.width == 0 or image.height == 0:
        raise Refusal("an image has at least one pixel", image, "leave the sample out")
    if getattr(image, "n_frames", 1) > 1:
        raise Refusal(
            "an image has one frame", image, "append [frame.copy() for frame in PIL.ImageSequence.Iterator(image)]"
        )
    if image.mode not in _EXACT_MODES:
        raise Refusal(f"PNG cannot hold mode {image.mode} exactly", image, "convert it (image.convert('RGB')) first")


def _load(image: Any) -> None:
    """Decode now, and refuse a truncated file even where the process has told PIL to fill it with grey."""
    from PIL import ImageFile

    lenient, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, False
    try:
        image.load()
    except (OSError, SyntaxError, ValueError) as error:
        raise Refusal(
            f"the image cannot be decoded ({error})", image, "leave the sample out or repair the file"
        ) from error
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = lenient
