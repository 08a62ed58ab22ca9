"""Where things lie in a workspace, the folder that ``poolish prepare`` and a trainer are started in.

<workspace>/
  config/validator.py                  checks of its own, optional
  data/<dataset>/prepare_streaming.py  the provider
  data/<dataset>/config/*.py, *.toml   defaults under the shared config, optional
  data/<dataset>/queue/                what the provider publishes
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

PROVIDER_FILE = "prepare_streaming.py"

#: As many datasets as an error names.
_MAX_NAMED = 20


def candidates(config_path: Path) -> tuple[Path, ...]:
    """Where a workspace is looked for: the current directory, the folder of the config, and the one above that.

    >>> candidates(Path("/pool/config/train.py"))[1:]
    (PosixPath('/pool/config'), PosixPath('/pool'))
    """
    folder = config_path.absolute().parent
    return tuple(dict.fromkeys([Path.cwd(), folder, folder.parent]))


def find_workspace(dataset: str | None, folders: Iterable[Path]) -> Path | None:
    """The first of the folders that has the dataset."""
    if dataset is None:
        return None
    return next((folder for folder in folders if dataset_folder(folder, dataset).is_dir()), None)


def dataset_folder(workspace: Path, dataset: str) -> Path:
    """Where a dataset lies."""
    return workspace / "data" / dataset


def default_files(workspace: Path, dataset: str) -> list[Path]:
    """The files of a dataset's defaults, in the order of their names; a later one overrides an earlier one."""
    folder = dataset_folder(workspace, dataset) / "config"
    found = [path for pattern in ("*.py", "*.toml") for path in folder.glob(pattern)]
    return sorted((path for path in found if not path.name.startswith((".", "_"))), key=lambda path: path.name)


def no_such_dataset(dataset: str, folders: Iterable[Path]) -> str:
    """What to say when none of the folders has the dataset: where it was looked for, and what there is.

    >>> (folder / "data" / "shakespeare").mkdir(parents=True)
    >>> print(no_such_dataset("shakespere", [folder]))
    dataset 'shakespere': there is no folder data/shakespere in ...; did you mean 'shakespeare'? There are: shakespeare
    """
    places = list(folders)
    names = sorted({name for place in places for name in _datasets(place)})
    nearest = get_close_matches(dataset, names, n=1)
    return (
        f"dataset {dataset!r}: there is no folder data/{dataset} in {', '.join(map(str, places))}; "
        + (
            f"did you mean {nearest[0]!r}? "
            if nearest
            else "correct the name, make the folder, or name the workspace. "
        )
        + f"There are: {', '.join(names[:_MAX_NAMED]) or 'none'}{', ...' if len(names) > _MAX_NAMED else ''}"
    )


def refuse_direct_run(module: str) -> None:
    """End the program if ``module`` is a provider's file that is run by itself: it would do nothing, and not say so.

    A file with a main part of its own (``if __name__ == "__main__"``) is left alone, and so is any other script.
    """
    if module != "__main__":
        return
    main = Path(getattr(sys.modules["__main__"], "__file__", None) or "").absolute()
    if main.name == PROVIDER_FILE and main.parent.parent.name == "data" and b"__main__" not in main.read_bytes():
        config = sys.argv[1] if len(sys.argv) > 1 else "CONFIG"
        raise SystemExit(
            f"{main}: a provider is not run by itself, that would fill no queue; from {main.parent.parent.parent} run "
            f"`poolish prepare {config}` (or `python prepare.py {config}`)"
        )


def _datasets(workspace: Path) -> list[str]:
    data = workspace / "data"
    if not data.is_dir():
        return []
    return [path.name for path in data.iterdir() if path.is_dir() and not path.name.startswith(".")]
