"""From the name of a dataset to its provider class."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from poolish.errors import ConfigError
from poolish.serve.config import SharedConfig, load_config
from poolish.serve.workspace import find_provider

IMPORT = "from tests.serve.test_workspace import Base, Imported\n"


class Base:
    """Stands in for the base class of all providers."""


class Imported(Base):
    """A provider that lives elsewhere."""


@pytest.fixture(autouse=True)
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts without providers and leaves none."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    forget_providers()
    yield
    forget_providers()


def forget_providers() -> None:
    for name in [name for name in sys.modules if name.startswith(("poolish_provider_", "neighbour_of_"))]:
        del sys.modules[name]


@pytest.fixture
def base() -> type:
    """The base class as a provider's file imports it."""
    return importlib.import_module("tests.serve.test_workspace").Base


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the dataset char in a workspace, which is the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "char").mkdir(parents=True)
    return tmp_path / "data" / "char"


def config_for(folder: Path, dataset: str = "char", **extra: object) -> SharedConfig:
    workspace = folder.parent.parent
    path = workspace / "config.toml"
    path.write_text(f'dataset = "{dataset}"\nbatch_size = 32\nblock_size = 256\n')
    return load_config(path, extra)


def write_provider(folder: Path, text: str) -> Path:
    path = folder / "prepare_streaming.py"
    path.write_text(text)
    path.chmod(0o644)
    return path


# Which class --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("class CharProvider(Base): ...", "CharProvider"),
        ("class CharProvider(Imported): ...", "CharProvider"),
        ("class CharProvider(Base): ...\nalias = CharProvider", "CharProvider"),
        ("class Other: ...\nclass CharProvider(Base): ...\nhelper = CharProvider()", "CharProvider"),
        ("class One(Base): ...\nclass Provider(One): ...", "Provider"),
        ("class One(Base): ...\nclass Two(Base): ...\nProvider = Two", "Two"),
        ("Provider = Imported", "Imported"),
    ],
)
def test_the_provider_is_the_only_subclass_or_the_one_named_so(folder, base, text, name):
    """What was only imported does not count, unless it is named Provider."""
    write_provider(folder, IMPORT + text)

    provider = find_provider(config_for(folder), base)

    assert provider.__name__ == name
    assert issubclass(provider, base)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "defines no subclass of Base; write one, or import one as Provider"),
        ("class Provided: ...", "defines no subclass of Base; "),
        ("class B(Base): ...\nclass A(Base): ...", r"defines 2 subclasses of Base \(A, B\); name one of them Provider"),
        ("Provider = Base", "Provider must subclass Base, got <class .*Base'>; rename one of them"),
        ("class Provider: ...", "Provider must subclass Base, got <class"),
        ("class A(Base): ...\nProvider = A()", "Provider must subclass Base, got <.*A object"),
    ],
)
def test_none_or_several_is_an_error_that_names_them(folder, base, text, reason):
    """Poolish does not guess which was meant."""
    write_provider(folder, IMPORT + text)

    with pytest.raises(ConfigError, match=rf"data/char/prepare_streaming\.py: {reason}"):
        find_provider(config_for(folder), base)


# How the file is run ------------------------------------------------------------------------------------------


def test_settings_are_globals_of_the_module(folder, base):
    """From its first line on, and later in its methods; its own definitions win."""
    write_provider(
        folder,
        "rate = globals()['mask_probability'] * 2\nseed = 'mine'\n"
        + IMPORT
        + "class P(Base):\n    def later(self): return globals()['mask_probability'], block_size, rate, seed",
    )

    provider = find_provider(config_for(folder, mask_probability=0.25), base)

    assert provider().later() == (0.25, 256, 0.5, "mine")


def test_a_provider_imports_its_neighbours(folder, base):
    """As if it were run where it lies; the path to them is gone afterwards."""
    (folder / "neighbour_of_char.py").write_text("alphabet = 'abc'")
    write_provider(folder, IMPORT + "from neighbour_of_char import alphabet\nclass P(Base):\n    letters = alphabet")
    path = list(sys.path)

    provider = find_provider(config_for(folder), base)

    assert provider.letters == "abc"
    assert sys.path == path


def test_a_provider_may_change_the_path_itself(folder, base):
    """Then there is nothing to take away."""
    write_provider(folder, "import sys\nsys.path.pop(0)\n" + IMPORT + "class P(Base): ...")
    path = list(sys.path)

    find_provider(config_for(folder), base)

    assert sys.path == path


def test_the_class_has_a_module_that_can_be_looked_up(folder, base):
    """So dataclasses, pickle and inspect work on it, also with dots in the name of the dataset."""
    dotted = folder.with_name("char-v1.5")
    dotted.mkdir()
    write_provider(
        dotted,
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        + IMPORT
        + "@dataclass\nclass P(Base):\n    n: int = 3\n",
    )

    provider = find_provider(config_for(folder, "char-v1.5"), base)

    assert provider().n == 3
    assert provider.__module__ == "poolish_provider_char_v1_5"
    assert pickle.loads(pickle.dumps(provider())) == provider()
    assert inspect.getsource(provider).startswith("@dataclass")


def test_no_bytecode_is_left_in_the_dataset(folder, base):
    """Nor is any read, which nobody would have checked."""
    write_provider(folder, IMPORT + "class P(Base): ...")

    find_provider(config_for(folder), base)

    assert [path.name for path in folder.iterdir()] == ["prepare_streaming.py"]


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("import no_such_library_at_all", ModuleNotFoundError, 1),
        ("x = 1\nraise KeyError('vocab')", KeyError, 2),
        ("class P(:", SyntaxError, 1),
    ],
)
def test_an_import_that_fails_keeps_its_type_and_gains_its_place(folder, base, text, error, line):
    """And leaves no module and no path behind."""
    path = write_provider(folder, text)
    before = list(sys.path)

    with pytest.raises(error) as caught:
        find_provider(config_for(folder), base)

    assert caught.value.__notes__ == [f"while running {path}, line {line}"]
    assert "poolish_provider_char" not in sys.modules
    assert sys.path == before


def test_a_failing_import_leaves_the_module_of_before(folder, base):
    """All or nothing: the provider that was loaded earlier stays usable."""
    write_provider(folder, IMPORT + "class P(Base): ...")
    provider = find_provider(config_for(folder), base)
    write_provider(folder, "1 / 0")

    with pytest.raises(ZeroDivisionError):
        find_provider(config_for(folder), base)

    assert sys.modules[provider.__module__].P is provider


# Where the file is --------------------------------------------------------------------------------------------


def test_a_wrong_dataset_name_is_answered_with_the_nearest(folder, base):
    """Whether the workspace was searched or given."""
    (folder.parent / "words").mkdir()
    config = config_for(folder, "chra")

    for loaded in (config, load_config(folder.parent.parent / "config.toml", workspace=folder.parent.parent)):
        with pytest.raises(ConfigError) as caught:
            find_provider(loaded, base)
        assert str(caught.value).startswith("dataset 'chra': there is no folder data/chra in ")
        assert str(caught.value).endswith("; did you mean 'char'? There are: char, words")


def test_a_workspace_without_datasets_says_so(tmp_path, base):
    """Nothing is near, nothing is there."""
    (tmp_path / "config.toml").write_text('dataset = "char"\nbatch_size = 32\nblock_size = 256\n')

    with pytest.raises(
        ConfigError, match=r"correct the name, make the folder, or name the workspace\. There are: none$"
    ):
        find_provider(load_config(tmp_path / "config.toml", workspace=tmp_path), base)


def test_a_dataset_without_provider_names_the_file_to_write(folder, base):
    """With the base class to subclass."""
    with pytest.raises(ConfigError, match=r"char/prepare_streaming\.py: not found; write it, with a subclass of Base"):
        find_provider(config_for(folder), base)


def test_a_provider_that_others_may_write_is_not_run(folder, base, monkeypatch):
    """The rules are those of a Python config."""
    mark = folder / "was_run"
    path = write_provider(folder, f"open({str(mark)!r}, 'w').close()\n" + IMPORT + "class P(Base): ...")
    config = config_for(folder)

    path.chmod(0o666)
    with pytest.raises(ConfigError, match="everyone may write to it"):
        find_provider(config, base)
    path.chmod(0o644)
    if os.geteuid() == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ConfigError, match="must be yours"):
        find_provider(config, base)

    assert not mark.exists()


# Run by itself ------------------------------------------------------------------------------------------------


PROVIDER = "from poolish import DataProviderBase\nclass Provider(DataProviderBase):\n    pass\n"


def run_by_itself(file: Path, text: str, *arguments: str) -> tuple[int, str]:
    """The exit status of a Python file, and what it printed."""
    file.write_text(text)
    done = subprocess.run([sys.executable, file, *arguments], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("arguments", "config"), [((), "CONFIG"), (("config/train.py",), "config/train.py")])
def test_a_provider_that_is_run_by_itself_says_what_to_run(folder: Path, arguments: tuple[str, ...], config: str):
    """It would fill no queue, so it fails, and names the command."""
    code, said = run_by_itself(folder / "prepare_streaming.py", PROVIDER, *arguments)

    assert code == 1
    assert f"from {folder.parent.parent} run `poolish prepare {config}` (or `python prepare.py {config}`)" in said
    assert "Traceback" not in said


def test_a_script_that_uses_its_own_provider_is_left_alone(folder: Path):
    """A provider's file with a main part, and any script that defines a provider."""
    with_main = f"{PROVIDER}if __name__ == '__main__':\n    print('mine')\n"
    assert run_by_itself(folder / "prepare_streaming.py", with_main) == (0, "mine\n")
    assert run_by_itself(folder / "experiment.py", f"{PROVIDER}print('mine')\n") == (0, "mine\n")
    assert run_by_itself(folder.parent.parent / "prepare_streaming.py", f"{PROVIDER}print('mine')\n") == (0, "mine\n")
