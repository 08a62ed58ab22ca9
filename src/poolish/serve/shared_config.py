"""What a shared config is: the settings that poolish knows, with their rules, and any others beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from poolish.errors import ConfigError
from poolish.files import check_name, parse_bytes
from poolish.serve.workspaces import dataset_folder, no_such_dataset

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
    """The settings of one run, the same for its provider and its trainer; they do not change any more.

    Settings that poolish does not know are attributes too. A workspace that wants its own settings checked as well
    makes a subclass named ``Config`` in ``config/validator.py``.

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
