"""Sound files, or a part of each, as float32.

Sound is an array of channels and frames, from -1 to 1, as torchaudio has it. Only the frames that are asked for are
read, wherever the format can be entered in the middle (WAV, FLAC, OGG).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poolish.errors import ConfigError
from poolish.load.base import BaseDataset, Transform, found_files, local_file

EXTENSIONS = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".opus")


class AudioDataset(BaseDataset):
    """Sound files: ``{"audio": float32 (channels, frames), "rate": frames per second, "path": str}``.

    ``source`` is a folder, in which all sound files are found and sorted, or a list of files in the order you want.
    ``offset_s`` and ``duration_s`` read a part of each file; a file that ends sooner gives what there is.

    >>> import soundfile
    >>> soundfile.write(folder / "crust.wav", np.zeros((8000, 2)), 8000)
    >>> sounds = AudioDataset(folder, offset_s=0.25, duration_s=0.5)
    >>> sounds[0]["audio"].shape, sounds[0]["rate"]
    ((2, 4000), 8000)
    """

    input_name = "audio"
    unidentified = ("paths",)

    def __init__(
        self,
        source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        transform: Transform | None = None,
        *,
        offset_s: float = 0.0,
        duration_s: float | None = None,
        extensions: Sequence[str] = EXTENSIONS,
    ) -> None:
        _soundfile()  # missing is said now, not at the first sound
        if offset_s < 0 or (duration_s is not None and duration_s <= 0):
            raise ConfigError(f"offset_s={offset_s}, duration_s={duration_s}: seconds from 0, and a duration above 0")
        self._offset_s, self._duration_s = offset_s, duration_s
        if isinstance(source, (str, os.PathLike)):
            super().__init__(source, transform)
            self.paths = found_files(self.root, tuple(extensions))
        else:
            self.paths = [os.path.abspath(local_file(path, type(self).__name__)) for path in source]
            super().__init__(os.path.commonpath([*map(os.path.dirname, self.paths)]) if self.paths else ".", transform)
        if not self.paths:
            raise FileNotFoundError(f"{self.root}: no sound files ({', '.join(extensions)}); check the folder")
        missing = [path for path in self.paths if not Path(path).is_file()]
        if missing:
            raise FileNotFoundError(f"{missing[0]}: no such file; check the list")

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, number: int) -> dict[str, Any]:
        """One file, or the part of it."""
        path = self.paths[number]
        try:
            with _soundfile().SoundFile(path) as file:
                rate = int(file.samplerate)
                first = min(round(self._offset_s * rate), file.frames)
                file.seek(first)
                n_frames = -1 if self._duration_s is None else round(self._duration_s * rate)
                sound = file.read(n_frames, dtype="float32", always_2d=True)
        except Exception as error:
            error.add_note(f"in {path}")
            raise
        return {"audio": np.ascontiguousarray(sound.T), "rate": rate, "path": path}

    def files(self) -> list[str]:
        """The sound files."""
        return list(self.paths)

    def files_of(self, number: int) -> list[str]:
        """The sound file."""
        return [self.paths[number]]


def _soundfile() -> Any:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package without the library it wraps
        raise ImportError('reading sound needs soundfile: pip install "poolish[audio]"') from error
    return soundfile
