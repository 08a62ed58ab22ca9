"""The shared config: one file that the provider and the trainer both read, checked by one model for both.

It is TOML, or a Python file of plain names. What is set higher up wins::

    --set name=value                       overrides for one run
    config.toml or config.py               the shared config
    data/<dataset>/config/*.py, *.toml     defaults of the dataset, in the order of their names
    SharedConfig                           defaults of poolish

Then all of it is checked together, by ``SharedConfig`` or by what the workspace's own ``config/validator.py`` makes of
it, and every problem is listed at once. Unknown names pass through to the provider, but one that is almost a
known name (of poolish, of the workspace, or of a file lower down) is an error, because it would have no effect.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import keyword
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from poolish.errors import ConfigError
from poolish.files import check_name, parse_bytes
from poolish.files.documents import shorten
from poolish.serve.workspace import (
    candidates,
    dataset_folder,
    default_files,
    find_workspace,
    names_in,
    no_such_dataset,
    read_source,
    run_source,
)

__all__ = ["SharedConfig", "check_config", "config_from_command_line", "load_config"]


Bytes = Annotated[int, BeforeValidator(parse_bytes)]


def _as_tuple(splits: object) -> object:
    """TOML has lists only. Nothing else becomes a tuple: a set has no order."""
    return tuple(splits) if isinstance(splits, list) else splits


def _check_splits(splits: tuple[str, ...]) -> tuple[str, ...]:
    for split in splits:
        check_name(split, "split")
    if not splits or len(set(splits)) < len(splits):
        raise ValueError("should name at least one split, and each once")
    return splits


Splits = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_check_splits)]


class SharedConfig(BaseModel):
    """The settings of one run, shared by its provider and its trainer; immutable.

    Unknown settings are attributes too. To validate its own settings, a workspace defines a subclass named ``Config``
    in ``config/validator.py``.

    >>> config = SharedConfig(dataset="char", batch_size=32, block_size=256, mask_probability=0.15)
    >>> config.batch_size, config.mask_probability, config.splits
    (32, 0.15, ('train', 'val'))
    """

    # Strict: "32" and 32.0 are no batch sizes.
    model_config = ConfigDict(strict=True, frozen=True, extra="allow", protected_namespaces=())

    dataset: Annotated[str, AfterValidator(check_name)]
    batch_size: int = Field(ge=1)
    block_size: int = Field(ge=1)
    seed: int = Field(default=0, ge=0, lt=2**64)
    splits: Splits = ("train", "val")
    max_backlog: int = Field(default=64, ge=1)
    max_backlog_bytes: Annotated[Bytes, Field(ge=1)] = parse_bytes("8gb")
    min_free_bytes: Bytes = parse_bytes("64mb")
    durability: Literal["process", "power"] = "process"
    max_batches: int | None = Field(default=None, ge=1)

    _workspace: Path | None = PrivateAttr(default=None)
    _looked_in: tuple[Path, ...] = PrivateAttr(default=())
    _sha256: str | None = PrivateAttr(default=None)

    @property
    def workspace(self) -> Path | None:
        """The folder that holds ``data/<dataset>``; None where there is none, as with a trainer that only reads."""
        return self._workspace

    @property
    def sha256(self) -> str | None:
        """Of the bytes of the config file; None for a config that did not come from one."""
        return self._sha256

    @property
    def dataset_path(self) -> Path:
        """``<workspace>/data/<dataset>``, whether or not it is there."""
        if self._workspace is not None:
            return dataset_folder(self._workspace, self.dataset)
        if self._looked_in:
            raise ConfigError(no_such_dataset(self.dataset, self._looked_in))
        raise ConfigError(
            f"dataset {self.dataset!r}: this config has no workspace; use load_config(path, workspace=...)"
        )

    def names(self) -> dict[str, Any]:
        """All settings, those that poolish knows and the others; the values are not copied.

        >>> list(SharedConfig(dataset="char", batch_size=32, block_size=256, lr=0.1).names())[-2:]
        ['max_batches', 'lr']
        """
        return {name: getattr(self, name) for name in type(self).model_fields} | (self.model_extra or {})


class Layer(NamedTuple):
    """Settings from one place; lower layers come first."""

    source: str
    values: Mapping[str, Any]


class Rules(NamedTuple):
    """What a config is checked by: a model, names that are known besides its fields, and a function of the user."""

    model: type[SharedConfig] = SharedConfig
    known: frozenset[str] = frozenset()
    validate: Callable[[SharedConfig], Iterable[str] | None] = lambda config: None
    source: str = ""


def check_config(
    values: Mapping[str, Any], *, model: type[SharedConfig] = SharedConfig, known: Iterable[str] = ()
) -> SharedConfig:
    """The settings as a config, or one ``ConfigError`` that lists everything wrong with them.

    >>> check_config({"dataset": "char", "bacth_size": 32, "block_size": 0})
    Traceback (most recent call last):
    poolish.errors.ConfigError: the config has 3 problems:
      bacth_size: unknown, did you mean batch_size? A setting of your own is declared in config/validator.py
      batch_size: missing, it has no default; set it
      block_size: should be greater than or equal to 1, got int 0
    """
    config, problems = _check([Layer("", values)], Rules(model, frozenset(known)))
    return _raise_problems(config, problems, "the config")


def load_config(
    path: str | os.PathLike[str],
    overrides: Mapping[str, Any] | Iterable[str] = (),
    *,
    workspace: str | os.PathLike[str] | None = None,
) -> SharedConfig:
    """Read a shared config, with the defaults under it and the overrides (a mapping, or "name=value" texts) over it.

    The workspace is searched in the current directory, the folder of the config and the one above, if it is not given.
    A ``.py`` file is run, if it is the user's own or root's and not writable for everyone; TOML never runs.

    >>> path = folder / "config.toml"
    >>> _ = path.write_text('dataset = "char"\\nbatch_size = 32\\nblock_size = 256\\nmask_probability = 0.15')
    >>> config = load_config(path, ["batch_size=8", "max_backlog_bytes=1gb"])
    >>> config.batch_size, config.max_backlog_bytes, config.mask_probability
    (8, 1073741824, 0.15)
    """
    path = Path(path)
    source = read_source(path)
    shared = Layer("", names_in(path, source))
    chosen, problems = _read_overrides(overrides)
    dataset = _dataset_of({**shared.values, **chosen.values})
    looked_in = candidates(path)
    found = find_workspace(dataset, looked_in) if workspace is None else _check_workspace(Path(workspace))

    defaults = _read_defaults(found, dataset, path) if found and dataset else []
    config, more = _check([*defaults, shared, chosen], _read_rules(found))
    config = _raise_problems(config, [*problems, *more], str(path))
    config._workspace, config._looked_in, config._sha256 = found, looked_in, hashlib.sha256(source).hexdigest()
    return config


def config_from_command_line(argv: Sequence[str] | None = None, *, description: str | None = None) -> SharedConfig:
    """The config that a program was started with: ``python train.py CONFIG [--set NAME=VALUE ...]``.

    >>> _ = (folder / "config.toml").write_text('dataset = "char"\\nbatch_size = 32\\nblock_size = 256')
    >>> config_from_command_line([str(folder / "config.toml"), "--set", "seed=7"]).seed
    7
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("config", metavar="CONFIG", help="the shared config, a .toml or .py file")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="override one of its settings",
    )
    arguments = parser.parse_args(argv)
    return load_config(arguments.config, arguments.overrides)


# Reading ------------------------------------------------------------------------------------------------------


def read_value(text: str) -> Any:
    """What a value on the command line means: true, false, a Python literal, or else the text itself.

    >>> [read_value(text) for text in ["8", "1e-3", "true", "[1, 2]", "8gb", "'8'"]]
    [8, 0.001, True, [1, 2], '8gb', '8']
    """
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def _read_overrides(overrides: Mapping[str, Any] | Iterable[str]) -> tuple[Layer, list[str]]:
    if isinstance(overrides, Mapping):
        return Layer("override", overrides), []
    if isinstance(overrides, str):
        raise ConfigError(
            f"overrides: a mapping or a list of 'name=value' texts, got text {overrides!r}; put it in a list"
        )
    pairs = [(text, *text.partition("=")) for text in overrides]
    problems = [f"--set {text}: should be name=value" for text, _, equals, _ in pairs if not equals]
    return Layer("--set", {name.strip(): read_value(value) for _, name, equals, value in pairs if equals}), problems


def _read_defaults(workspace: Path, dataset: str, config_path: Path) -> list[Layer]:
    files = [path for path in default_files(workspace, dataset) if path.resolve() != config_path.resolve()]
    return [Layer(str(path), names_in(path, read_source(path))) for path in files]


def _dataset_of(values: Mapping[str, Any]) -> str | None:
    """The dataset, if its name can be part of a path; what is wrong with it otherwise is said later."""
    try:
        return check_name(values.get("dataset", ""))
    except ConfigError:
        return None


def _check_workspace(workspace: Path) -> Path:
    if not workspace.is_dir():
        raise ConfigError(f"workspace {str(workspace)!r}: no such folder; give the one that holds data/")
    return workspace.absolute()


def _read_rules(workspace: Path | None) -> Rules:
    path = workspace / "config" / "validator.py" if workspace else None
    if path is None or not path.exists():
        return Rules()
    module = run_source(path, read_source(path), "poolish_validator")
    model = getattr(module, "Config", SharedConfig)
    if not (isinstance(model, type) and issubclass(model, SharedConfig)):
        raise ConfigError(f"{path}: Config must subclass SharedConfig, got {model!r}; change or rename it")
    if not hasattr(module, "Config") and not callable(getattr(module, "validate", None)):
        raise ConfigError(f"{path}: checks nothing; define validate(config), or Config, a subclass of SharedConfig")
    return Rules(model, frozenset(), getattr(module, "validate", Rules().validate), str(path))


# Checking -----------------------------------------------------------------------------------------------------


def _check(layers: Iterable[Layer], rules: Rules) -> tuple[SharedConfig | None, list[str]]:
    """The config that the layers make, if they make one, and all that is wrong with it."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    problems: list[str] = []
    for source, added in layers:
        known = [*rules.model.model_fields, *rules.known, *values]
        wrong = {name: rule for name in added if (rule := _wrong_name(name, known, rules.model))}
        problems += [_line(str(name), rule, source) for name, rule in wrong.items()]
        values |= {name: value for name, value in added.items() if name not in wrong}
        sources |= dict.fromkeys(added, source)
    try:
        config = rules.model.model_validate(values)
    except ValidationError as error:
        return None, problems + _explain(error, sources)
    return config, problems + _user_problems(rules, config)


def _wrong_name(name: object, known: Iterable[str], model: type[SharedConfig]) -> str | None:
    """What is wrong with the name of a setting, as a rule; None if nothing is."""
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        return "not a name that a provider could use; write letters, digits and _, a letter first"
    if name not in model.model_fields and any(name in vars(parent) for parent in model.__mro__):
        return "taken by the config object itself; choose another name"
    nearest = near_miss(name, known)
    return nearest and f"unknown, did you mean {nearest}? A setting of your own is declared in config/validator.py"


def _user_problems(rules: Rules, config: SharedConfig) -> list[str]:
    """The problems that the user's own function finds."""
    try:
        found = rules.validate(config) or ()
        return [found] if isinstance(found, str) else [str(problem) for problem in found]
    except ValidationError as error:
        return _explain(error, {})
    except ValueError as error:
        return [str(error)]
    except Exception as error:
        error.add_note(f"while validate(config) of {rules.source} looked at the config")
        raise


def _explain(error: ValidationError, sources: Mapping[str, str]) -> list[str]:
    """What pydantic found, one line for each."""
    lines = []
    for found in error.errors(include_url=False):
        name = ".".join(map(str, found["loc"])) or "config"
        cause = found.get("ctx", {}).get("error", found["msg"].removeprefix("Input "))
        if found["type"] == "missing":
            rule = "missing, it has no default; set it"
        elif isinstance(cause, ConfigError) or not found["loc"]:
            rule = str(cause)
        else:
            rule = f"{cause}, got {type(found['input']).__name__} {shorten(repr(found['input']))}"
        lines.append(_line(name, rule, sources.get(str(found["loc"][0])) if found["loc"] else None))
    return lines


def _line(name: str, rule: str, source: str | None) -> str:
    return f"{name}: {rule}{f' ({source})' if source else ''}"


def _raise_problems(config: SharedConfig | None, problems: Sequence[str], what: str) -> SharedConfig:
    if config is None or problems:
        count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise ConfigError("\n  ".join([f"{what} has {count}:", *problems]))
    return config


# Misspelt names -----------------------------------------------------------------------------------------------
#
# Unknown settings pass through to the provider, so a typo would pass as well and the run would use the default. A near
# miss is a known name with other capitals or underscores, or with one typo in one of its words. Similarity (difflib)
# does not tell typos from names: dataest is 0.86 like dataset, but so is val_batch_size like batch_size, and
# encoder_layers is 0.92 like decoder_layers.

#: One letter away from a setting of ours, and settings of their own in many a config.
_ESTABLISHED = {"feed", "patch_size", "speed"}

#: Shorter words are names in themselves: ``n_head`` and ``d_head``, ``lr`` and ``wr``.
_MIN_LETTERS = 3


def near_miss(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` probably misspells; None if it is known, or a name of its own.

    >>> near_miss("bacth_size", ["block_size", "batch_size"])
    'batch_size'
    >>> near_miss("val_batch_size", ["block_size", "batch_size"])
    """
    known = list(known)
    if name in known or name in _ESTABLISHED:
        return None
    return next((other for other in known if _is_near(name, other)), None)


def _is_near(name: str, other: str) -> bool:
    words, other_words = name.lower().split("_"), other.lower().split("_")
    if "".join(words) == "".join(other_words):
        return True
    if len(words) != len(other_words):
        return False
    different = [(word, right) for word, right in zip(words, other_words, strict=True) if word != right]
    return len(different) == 1 and min(map(len, different[0])) >= _MIN_LETTERS and _is_one_typo(*different[0])


def _is_one_typo(word: str, right: str) -> bool:
    i = next(i for i, (a, b) in enumerate(zip_longest(word, right)) if a != b)
    # beta1 and beta2 are two settings.
    if word[i : i + 1].isdigit() or right[i : i + 1].isdigit():
        return False
    too_many, missing, wrong = word[i + 1 :] == right[i:], word[i:] == right[i + 1 :], word[i + 1 :] == right[i + 1 :]
    swapped = word[i : i + 2] == right[i : i + 2][::-1] and word[i + 2 :] == right[i + 2 :]
    return too_many or missing or wrong or swapped
