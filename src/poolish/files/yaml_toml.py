"""Files that people write, in YAML or TOML: plain values, read strictly.

YAML can do more than it should: two equal keys, references that make a small file expand to gigabytes, tags that make
objects, ``no`` for false and ``1:30`` for ninety. Only mappings with unique keys, lists, text, numbers as JSON has
them, true, false and null come through here. Of the others TOML has only dates.

What is refused is a ``ConfigError``: the source, line and column, what is wrong there, and what to write instead. The
rooms say with ``what`` whose file it is, such as a suite or a recipe. This module is imported where it is needed:
PyYAML takes longer to load than all of ``poolish.files``.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Hashable
from typing import Any

import tomli_w
import yaml

from poolish.errors import ConfigError
from poolish.files.documents import MAX_BYTES, MAX_DEPTH, check_size, shorten

# YAML --------------------------------------------------------------------------------------------------------------


def dump_yaml(values: dict[str, Any]) -> str:
    """Plain values as YAML.

    >>> print(dump_yaml({"suite": "s", "expect": [{"column": "x", "between": [0, 1.5]}]}), end="")
    suite: s
    expect:
    - column: x
      between: [0, 1.5]
    """
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def parse_yaml(text: str, source: str, *, what: str = "file") -> Any:
    """The values in YAML text. ``source`` is where it came from, ``what`` it is that is kept there.

    >>> parse_yaml("a: 1\\nb: 2\\na: 3", "r", what="recipe")
    Traceback (most recent call last):
    poolish.errors.ConfigError: r, line 3, column 1: no YAML that a recipe can be in: key 'a' stands there twice; ...
    """
    check_size(len(text), source, what)
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        place, why = _explained(error, text)
        raise ConfigError(f"{source}{place}: no YAML that a {what} can be in: {why}") from None


def _explained(error: yaml.YAMLError, text: str) -> tuple[str, str]:
    """Where PyYAML stopped, and why, in one line."""
    if isinstance(error, yaml.reader.ReaderError):
        return _place(text, error.position), f"character #x{error.character:04x} is not allowed; remove it"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        why = " ".join(" ".join(part for part in (error.context, error.problem) if part).split())
        # Our own reasons say themselves what to do.
        return place, why if isinstance(error, _Refused) else f"{why}; correct it there"
    return "", f"{' '.join(str(error).split())}; correct it there"


class _Refused(yaml.MarkedYAMLError):
    """What YAML allows and we do not."""

    def __init__(self, why: str, mark: Any) -> None:
        super().__init__(problem=why, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    """YAML without references and tags, not too deep, and with each key once."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Refused("references (*name) are not read; write the value out", event.start_mark)
        if event.tag is not None:
            raise _Refused(f"tags ({shorten(event.tag)}) are not read; write plain values", event.start_mark)
        if self._depth >= MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            raise _Refused(f"nested more than {MAX_DEPTH} deep; write it flatter", event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # a number with more digits than Python reads
            raise _Refused(f"{error}; shorten it", node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for each, _ in node.value:
            key = self.construct_object(each, deep=True)
            if not isinstance(key, Hashable):
                raise _Refused(f"key {shorten(repr(key))} is no plain value; use text", each.start_mark)
            if key in seen:
                raise _Refused(f"key {shorten(repr(key))} stands there twice; remove one of them", each.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """YAML with short lists on one line; text in quotes where any reader could take it for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_scalar(self, tag: str, value: Any, style: str | None = None) -> Any:
        # Outside of double quotes PyYAML reads each of these back as another character.
        is_odd = isinstance(value, str) and any(each in value for each in "\x85\u2028\u2029")
        return super().represent_scalar(tag, value, '"' if is_odd else style)

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        is_flat = all(not isinstance(each, (dict, list)) for each in sequence)
        return super().represent_sequence(tag, sequence, flow_style=is_flat)


def _resolve_plainly() -> None:
    """Plain words mean what they mean in JSON, to readers; writers quote what either reader could misread."""
    plain = {
        "tag:yaml.org,2002:bool": (r"true|false", "tf"),
        "tag:yaml.org,2002:null": (r"null|~|", ["n", "~", ""]),
        "tag:yaml.org,2002:int": (r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
        "tag:yaml.org,2002:float": (
            r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
            "-+0123456789.",
        ),
    }
    _Loader.yaml_implicit_resolvers = {}
    for tag, (pattern, first) in plain.items():
        for kind in (_Loader, _Dumper):
            kind.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), list(first))


_resolve_plainly()


# TOML --------------------------------------------------------------------------------------------------------------

#: Strings and comments as one piece (an unfinished one to the end, so that no text is looked at twice); what nests.
_NESTING = re.compile(
    r'"""(?:[^\\]|\\.)*?(?:"""|\Z)|' r"'''.*?(?:'''|\Z)|" r'"(?:[^"\\\n]|\\.)*"?|' r"'[^'\n]*'?|#[^\n]*|[.\[\]{}=,\n]",
    re.DOTALL,
)


def dump_toml(values: dict[str, Any]) -> str:
    """Plain values as TOML."""
    return tomli_w.dumps(values)


def parse_toml(text: str, source: str, *, what: str = "file") -> Any:
    """The values in TOML text, which may be dates as well."""
    check_size(len(text), source, what)
    too_deep = _too_deep(text)
    if too_deep is not None:
        place = _place(text, too_deep)
        raise ConfigError(
            f"{source}{place}: no TOML that a {what} can be in: nested more than {MAX_DEPTH} deep; write it flatter"
        )
    try:
        return tomllib.loads(text)
    except ValueError as error:  # a syntax error, or a number with more digits than Python reads
        raise ConfigError(f"{source}: no TOML that a {what} can be in: {error}; correct it there") from None


def _too_deep(text: str) -> int | None:
    """Where brackets or dots of one key nest too deep, found before parsing: brackets would end the parser's stack.

    And for a key of n parts it takes n^2 steps: 25 seconds for 80 kB.
    """
    n_brackets = n_dots = 0
    for token in _NESTING.finditer(text):
        n_brackets += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if token[0] == ".":
            n_dots += 1
        elif len(token[0]) == 1:
            n_dots = 0
        if max(n_brackets, n_dots) > MAX_DEPTH:
            return token.start()
    return None


# Both --------------------------------------------------------------------------------------------------------------


def read_text(path: str | os.PathLike[str], *, what: str = "file") -> str:
    """The text of a file of bounded size."""
    source = os.fspath(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # not waiting, should it be a pipe
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ConfigError(f"{source}: not a regular file; give the path of a {what}")
        data = file.read(MAX_BYTES + 1)
    check_size(len(data), source, what)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: a {what} is text in UTF-8 ({error}); save it as that") from None


def _place(text: str, position: int) -> str:
    return f", line {text.count(chr(10), 0, position) + 1}, column {position - text.rfind(chr(10), 0, position)}"
