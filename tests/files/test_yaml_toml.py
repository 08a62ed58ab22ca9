"""YAML and TOML that people write: plain values come through, everything else is refused with its place."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from poolish.errors import ConfigError, LimitExceeded
from poolish.files.yaml_toml import dump_toml, dump_yaml, parse_toml, parse_yaml, read_text

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | text


def tables(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    inner = st.recursive(
        leaves, lambda each: st.lists(each, max_size=3) | st.dictionaries(text, each, max_size=3), max_leaves=8
    )
    return st.dictionaries(text, inner, max_size=4)


# What comes through -------------------------------------------------------------------------------------------------


@given(tables(scalars | st.none()))
def test_yaml_gives_back_what_was_written(told):
    """To us and to any other reader of YAML."""
    written = dump_yaml(told)

    assert repr(parse_yaml(written, "r.yaml")) == repr(told)
    assert repr(yaml.safe_load(written)) == repr(told)


@given(tables(scalars))
def test_toml_gives_back_what_was_written(told):
    """Everything but null, which TOML does not have; tables come last there."""
    assert parse_toml(dump_toml(told), "r.toml") == told


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        *(("no", "no"), ("Yes", "Yes"), ("on", "on"), ("1:30", "1:30"), ("0x1f", "0x1f"), ("010", "010")),
        *(("1_000", "1_000"), ("2026-01-31", "2026-01-31"), ("<<", "<<"), ("=", "=")),
        *(("true", True), ("null", None), ("~", None), ("", None), ("7", 7), ("1e5", 1e5), (".inf", math.inf)),
    ],
)
def test_plain_words_mean_what_they_mean_in_json(word: str, meaning: Any):
    """Nothing is a number, a date or a truth that does not look so to everybody."""
    assert parse_yaml(f"a: {word}", "r.yaml") == {"a": meaning}


def test_an_anchor_that_nobody_refers_to_is_harmless():
    """Only references can repeat a value."""
    assert parse_yaml("a: &x 1", "r.yaml") == {"a": 1}


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("a: 1\nb: 2\na: 3", "r.yaml, line 3, column 1: no YAML that a file can be in: key 'a' stands there twice"),
        ("{1: 2, 1: 3}", "line 1, column 8: no YAML that a file can be in: key 1 stands there twice; remove one"),
        ("a:\n- {b: 1, c: 2, b: 3}", "line 2, column 16"),
        ("a: &x [1]\nb: *x", "line 2, column 4: no YAML that a file can be in: references (*name) are not read"),
        ("a: &x [*x]", "line 1, column 8"),
        ("? [a]\n: 1", "line 1, column 3: no YAML that a file can be in: key ['a'] is no plain value; use text"),
        ("a: !!set {x, y}", "line 1, column 4: no YAML that a file can be in: tags (tag:yaml.org,2002:set)"),
        ("a: !!binary aGk=", "tags"),
        ("a: !!timestamp 2026-01-31", "tags"),
        ("a: !!int '1:30'", "tags"),
        ("a: !new b", "tags (!new) are not read; write plain values"),
        ("!!python/object/apply:os.system [ls]", "tags"),
        ("a: [", "line 1, column 5: no YAML that a file can be in: while parsing a flow node"),
        ("a: b: c", "; correct it there"),
        ("a: 1\n---\nb: 2", "line 2, column 1: no YAML that a file can be in: expected a single document"),
        ("a:\n  \x01", "line 2, column 3: no YAML that a file can be in: character #x0001 is not allowed; remove it"),
        ("a: \ud800", "line 1, column 4"),
        ("a: " + "1" * 5_000, "line 1, column 4"),
        ("[" * 65 + "]" * 65, "line 1, column 65: no YAML that a file can be in: nested more than 64 deep"),
        ("[" * 500_000, "nested more than 64 deep"),
        ("\n".join(" " * i + "a:" for i in range(70)), "line 65, column 65"),
    ],
)
def test_yaml_that_is_no_plain_value_is_refused_with_its_place(written: str, why: str):
    """The source, line and column, the reason, and what to do about it."""
    with pytest.raises(ConfigError) as caught:
        parse_yaml(written, "r.yaml")

    assert str(caught.value).startswith("r.yaml, line ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("a = 1\na = 2\n", "(at line 2, column 6); correct it there"),
        ("a = ", "r.toml: no TOML that a file can be in"),
        ("a = " + "1" * 5_000, "digits"),
        ("\na = " + "[" * 65, "r.toml, line 2, column 69: no TOML that a file can be in: nested more than 64 deep"),
        (f"a = {'{a = ' * 65}", "nested more than 64 deep"),
        (f"a{'.a' * 400_000} = 1", "nested more than 64 deep"),
        (f'"a.a"{" . b" * 65} = 1', "nested more than 64 deep"),
        (f"[a{'.a' * 65}]", "nested more than 64 deep"),
    ],
)
def test_toml_that_cannot_be_read_is_refused_with_its_place(written: str, why: str):
    """Long keys too, which would take the parser hours."""
    with pytest.raises(ConfigError) as caught:
        parse_toml(written, "r.toml")

    assert why in str(caught.value)
    assert str(caught.value).startswith("r.toml")


def test_as_deep_as_allowed_is_read():
    """64 levels, in both."""
    deepest: Any = 1
    for _ in range(63):
        deepest = [deepest]

    assert parse_yaml("a: " + "[" * 63 + "1" + "]" * 63, "r") == {"a": deepest}
    assert parse_toml("a = " + "[" * 63 + "1" + "]" * 63, "r") == {"a": deepest}


def test_dots_and_brackets_in_toml_text_nest_nothing():
    """Whatever quotes are around them, and in comments."""
    dots = "[.{" * 100
    lines = [f"a = '{dots}'", f'b = "\\"{dots}"', f"# {dots}", f"c = '''\n{dots}'''", f'd = """\n\\"""{dots}"""']

    assert parse_toml("\n".join(lines), "r.toml") == {"a": dots, "b": f'"{dots}', "c": dots, "d": f'"""{dots}'}


@pytest.mark.parametrize("parse", [parse_yaml, parse_toml])
def test_too_large_is_refused_before_it_is_parsed(parse: Any):
    """A limit of ours, not of the parser."""
    with pytest.raises(LimitExceeded, match=r"^r: more than 1,000,000 bytes; no recipe is so large"):
        parse("#" * 1_000_001, "r", what="recipe")


def test_as_many_keys_as_fit_are_read():
    """Looking for equal keys takes no longer for the last key than for the first."""
    written = "".join(f"k{i}:\n" for i in range(30_000))

    assert len(parse_yaml(written, "r.yaml")) == 30_000


@given(st.text(max_size=40) | st.text("[]{}:,-?&*!'\"|>%@ \n\tab1.#=", max_size=40))
def test_whatever_is_in_a_text_is_read_or_refused(written):
    """No other exception than those promised."""
    for parse in (parse_yaml, parse_toml):
        with suppress(ConfigError, LimitExceeded):
            parse(written, "r")


# Files --------------------------------------------------------------------------------------------------------------


def test_only_regular_files_of_text_are_read(tmp_path: Path):
    """Nobody waits for a pipe, and nothing endless is read."""
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b"#" * 1_000_001)
    (tmp_path / "text").write_text("naïve: 1")
    os.mkfifo(tmp_path / "pipe")

    assert read_text(tmp_path / "text") == "naïve: 1"
    for odd in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
        with pytest.raises((ConfigError, IsADirectoryError)):
            read_text(odd, what="suite")
    with pytest.raises(ConfigError, match="a suite is text in UTF-8"):
        read_text(tmp_path / "bytes", what="suite")
    with pytest.raises(LimitExceeded, match="no suite is so large"):
        read_text(tmp_path / "large", what="suite")
