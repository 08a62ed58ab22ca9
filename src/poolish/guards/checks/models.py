"""Suite files: pydantic models made from the tables of ``entries``, which parse a file and give its JSON schema.

An entry is read by the same function in a file and in code, so both have the same errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, create_model, model_validator
from pydantic_core import PydanticCustomError

from poolish.errors import ConfigError
from poolish.guards.checks.entries import (
    ABSENT,
    KINDS,
    ON,
    REQUIRED,
    VERSION,
    Kind,
    WrongValues,
    read_entry,
    unknown_key,
)
from poolish.guards.checks.values import flag, plain, suite_name


def _read(kind: Kind, value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("table_type", "not a table")
    return read_entry(kind, value)


def _entry_type(name: str, kind: Kind) -> Any:
    """The type of an entry: ``read_entry`` reads it, and a model of the same keys describes it."""
    fields: dict[str, Any] = {}
    for key, each in kind.keys.items():
        default = ... if each.default is REQUIRED else None if each.default is ABSENT else each.default
        fields[key] = each.type, Field(default, description=each.help or None)
    model = create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=kind.help, **fields)
    return Annotated[Any, PlainValidator(partial(_read, kind), json_schema_input_type=model)]


def _version(value: Any) -> int:
    if value != VERSION:
        raise ConfigError(f"version {value!r} of suites is not known here, only {VERSION}")
    return VERSION


class _SuiteFile(BaseModel):
    """What a suite expects of rows, columns and their distributions."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _is_closed_by_a_schema(self) -> _SuiteFile:
        given = self.model_dump(by_alias=True)
        if given["closed"] and not given["schema"]:
            raise ConfigError("closed is for a suite that has a schema")
        return self


def _field(kind: str) -> Any:
    """The field for a list of entries, with an alias, because pydantic models have a ``schema`` of their own."""
    return list[_entry_type(f"{kind.title()}Entry", KINDS[kind])], Field([], alias=kind)  # type: ignore[misc]


_FIELDS: dict[str, Any] = {
    "suite": (Annotated[str, PlainValidator(suite_name, json_schema_input_type=str)], "suite"),
    "version": (Annotated[int, PlainValidator(_version, json_schema_input_type=Literal[1])], VERSION),
    **{f"{kind}_": _field(kind) for kind in KINDS},
    "closed": (Annotated[bool, PlainValidator(flag, json_schema_input_type=bool)], None),
    "actions": (_entry_type("Actions", ON), {}),
}
SuiteFile = create_model("SuiteFile", __base__=_SuiteFile, __doc__=_SuiteFile.__doc__, **_FIELDS)


def read_suite(given: Any, source: str) -> dict[str, Any]:
    """The values of a suite file by name, checked; a ConfigError names every wrong one."""
    try:
        return SuiteFile.model_validate(plain(given)).model_dump(by_alias=True)
    except ValidationError as error:
        raise WrongValues([problem for each in error.errors() for problem in _problems(each)]).at(source) from None


def json_schema() -> dict[str, Any]:
    """The JSON schema of suite files."""
    return SuiteFile.model_json_schema()


_SHAPES = {"list_type": "a list of entries", "table_type": "a table of names and values"}


def _problems(error: Any) -> list[tuple[str, object]]:
    """What pydantic found, as problems of ``entries``."""
    place = "".join(f"[{part}]" if isinstance(part, int) else str(part) for part in error["loc"])
    if error["type"] in ("extra_forbidden", "invalid_key"):
        known = [field.alias or name for name, field in SuiteFile.model_fields.items()]
        return [(unknown_key(error["loc"][0], known), None)]
    if error["type"] in _SHAPES:
        return [(f"{place} is {_SHAPES[error['type']]}, got {error['input']!r}", None)]
    if error["type"] == "model_type":
        return [(f"a suite is a table of names and values, got {type(error['input']).__name__}", None)]
    why = error.get("ctx", {}).get("error", error["msg"])
    if isinstance(why, WrongValues):
        return why.within(place)
    return [(f"{place}: {why}" if place else str(why), why)]
