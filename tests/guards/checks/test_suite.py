"""Suites: what they find, what they ask boundaries to do, and that a file keeps them exactly."""

from __future__ import annotations

import json
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from poolish import Field, guards
from poolish.errors import ConfigError, DataRefused, LimitExceeded
from poolish.guards import Profile, Suite, register_check
from poolish.guards.checks.distributions import STATISTICS
from poolish.guards.checks.entries import KINDS, OPPOSITES, RULES
from poolish.guards.checks.guard import ask, passed
from poolish.guards.checks.verdicts import ACTIONS, SEVERITIES
from poolish.guards.stats.detectors import DETECTOR_OPTIONS, DETECTORS
from poolish.guards.stats.distances import DISTANCES
from poolish.guards.stats.outliers import OUTLIER_METHODS

ROWS = {"reward": [0.5, math.nan, 99.0, 1.0], "kind": ["a", "a", "b", None], "n": [1, 2, 3, 4]}


@register_check("test.suite")
def anything(*columns):
    return True


# What it finds ----------------------------------------------------------------------------------------------------


def test_a_result_reports_all_of_it():
    """Good rows, bad rows with reasons, verdicts with counts and examples, as text, JSON and HTML."""
    suite = (
        Suite("rollouts")
        .expect("reward", finite=True, between=(-10, 10))
        .expect("kind", nullable=False, severity="warn")
    )

    result = suite.check(ROWS)

    assert not result.ok
    assert result.mask.tolist() == [True, False, False, True]
    assert result.bad_rows.to_pylist() == [
        {"row": 1, "id": None, "reason": "reward is finite: got nan; reward is between -10 and 10: got nan"},
        {"row": 2, "id": None, "reason": "reward is between -10 and 10: got 99.0"},
    ]
    assert [(v.title, v.severity, v.n_bad, v.ok) for v in result.verdicts] == [
        ("reward is finite", "error", 1, False),
        ("reward is between -10 and 10", "error", 2, False),
        ("kind is not null", "warn", 1, False),
    ]
    assert str(result).splitlines()[0] == "rollouts: failed, 2 of 3 checks failed, 1 warned, 2 of 4 rows bad"
    shown = json.loads(result.to_json())
    assert shown["n_bad"] == 2
    assert shown["verdicts"][0]["examples"] == [{"row": 1, "id": None, "value": "nan"}]
    assert "reward is finite" in result.to_html()


def test_a_warning_leaves_a_row_good():
    """It is reported, and the row passes."""
    result = Suite().expect("reward", finite=True, severity="warn").check(ROWS)

    assert result.outcome == "warning"
    assert result.mask.all()
    assert [str(verdict) for verdict in result.failures] == ["reward is finite: 1 of 4 rows are bad; row 1: nan"]


def test_hostile_values_are_shown_as_they_are():
    """A report runs nothing that a value says."""
    result = Suite("<b>").expect("text", max_length=3).check({"text": ["<script>alert(1)</script>"]})

    assert "<script>" not in result.to_html()
    assert "&lt;script&gt;" in result.to_html()


def test_a_schema_is_expected():
    """Columns, types, shapes, nulls; a nullable column may be missing, another one too many is not."""
    schema = [Field("x", "float32", shape=(None, 2)), Field("t", "string", nullable=True), Field("n", "int64")]
    suite = Suite().schema(schema)
    good = {"x": np.zeros((3, 5, 2), np.float32), "n": [1, 2, 3]}

    assert suite.check(good).ok
    assert suite.check({**good, "t": ["a", None, "b"]}).ok
    for change, reason in [
        ({"n": [1.5, 2.0, 3.0]}, "n is int64: column 'n' is float64, not int64"),
        ({"n": [1, None, 3]}, "n is not null: 1 of 3 rows are bad"),
        ({"x": np.zeros((3, 5, 3), np.float32)}, "x has shape [any, 2]: 3 of 3 rows are bad"),
        ({"x": np.zeros((3, 5, 2))}, "x holds float32: column 'x' holds float64"),
        ({"extra": [1, 2, 3]}, "column 'extra' is not in the schema, only ['x', 't', 'n']"),
    ]:
        result = suite.check({**good, **change})
        assert not result.ok
        assert reason in str(result)
    assert "there is no column 'n'" in str(suite.check({"x": good["x"]}))
    assert Suite().schema(schema, closed=False).check({**good, "extra": [1, 2, 3]}).ok


def test_statistics_are_in_their_ranges():
    """Each statistic is a verdict, with its value."""
    suite = Suite().stat("reward", mean=(0, 1), max=(None, 5), nan_share=(0, 0.5)).stat("kind", null_share=(0, 0.1))

    result = suite.check(ROWS)

    assert [(v.title, v.status, v.measured["value"]) for v in result.verdicts] == [
        ("reward has a mean between 0 and 1", "failed", 33.5),
        ("reward has a max of at most 5", "failed", 99.0),
        ("reward has a nan_share between 0 and 0.5", "ok", 0.25),
        ("kind has a null_share between 0 and 0.1", "failed", 0.25),
    ]
    assert result.outcome == "warning"  # statistics warn, unless their severity is raised
    assert result.mask.all()


def test_every_statistic_is_what_a_profile_says():
    """One word, one meaning."""
    rows = {"x": np.random.default_rng(0).normal(size=200)}

    verdicts = Suite().stat("x", **dict.fromkeys(STATISTICS, (None, 1e9))).check(rows).verdicts

    profile = Profile.of(rows)["x"]
    assert {verdict.status for verdict in verdicts} == {"ok"}
    assert [verdict.measured["value"] for verdict in verdicts] == [find(profile) for find in STATISTICS.values()]


def test_drift_needs_a_reference():
    """Rows or a profile; without one nothing can be said, and too few rows say nothing either."""
    rng = np.random.default_rng(0)
    before, after = (
        {"x": rng.normal(size=5_000), "y": rng.normal(size=5_000)},
        {"x": rng.normal(1, 1, 500), "y": rng.normal(size=500)},
    )
    suite = Suite().drift(severity="error")

    for reference in (before, suite.profile(before), pa.table(before)):
        result = suite.check(after, reference=reference)
        assert [verdict.columns for verdict in result.failures] == [("x",)]
        assert not result.ok
    assert suite.check(after).verdicts[0].status == "no reference"
    assert {verdict.status for verdict in suite.check({"x": [1.0], "y": [2.0]}, reference=before).verdicts} == {
        "insufficient"
    }
    assert "there is no such column any more" in str(suite.check({"x": after["x"]}, reference=before))


def test_too_many_outliers_are_the_bad_rows():
    """A few are usual; more than that are found, nulls and NaN left out."""
    values = [*np.random.default_rng(0).normal(size=200), None, math.nan]
    few, many = [*values, 50.0], [*values, *[50.0] * 5]
    suite = Suite().outliers("x", severity="error")

    assert suite.check({"x": few}).ok
    result = suite.check({"x": many})
    assert np.flatnonzero(~result.mask).tolist() == [202, 203, 204, 205, 206]
    assert Suite().outliers("x").check({"x": [1.0, 2.0]}).verdicts[0].status in ("insufficient", "ok")


def test_levels_include_each_other():
    """Format: what a column is. Statistics: its values. Meaning: what needs more than one column."""
    suite = Suite().schema({"a": "int64"}).expect("a", at_least=0).stat("a", mean=(0, 1)).expect_rows("a != 3")

    n_verdicts = [
        len(suite.check({"a": [1, 2]}, level=level).verdicts) for level in ("file", "format", "statistics", "meaning")
    ]

    assert n_verdicts == [1, 3, 5, 6]


# What boundaries do -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
def test_each_severity_has_its_action(action):
    """What may pass: all, the good rows, or none."""
    for severity in SEVERITIES:
        suite = Suite().expect("reward", finite=True, severity=severity).on(**{severity: action})

        result = suite.check(ROWS)

        kept = {"log": [True] * 4, "drop": [True, False, True, True]}.get(action, [False] * 4)
        assert result.action == action
        assert result.kept.tolist() == kept


def test_the_strictest_action_counts():
    """Of all checks that failed."""
    suite = Suite().expect("reward", finite=True).expect("n", below=3, severity="fatal").on(error="drop", fatal="skip")

    assert suite.check(ROWS).action == "skip"
    assert suite.check({**ROWS, "n": [0, 0, 0, 0]}).action == "drop"
    assert suite.check({"reward": [1.0], "n": [1]}).action == "log"


def test_what_no_row_is_to_blame_for_keeps_the_whole_batch_out():
    """Dropping the bad rows of a wrong mean means dropping the batch."""
    suite = Suite().stat("n", mean=(0, 1), severity="error").on(error="drop")

    assert not suite.check(ROWS).kept.any()


def test_a_boundary_takes_any_guard_that_answers_like_a_suite():
    """ok, mask and verdicts are enough; what is not ok is refused."""

    class Answer:
        ok, mask, verdicts = False, np.array([True, False]), ["the second is bad"]

    result = ask(lambda rows: Answer(), {"a": [1, 2]})

    with pytest.raises(DataRefused, match=r"append: .*the second is bad; 1 of 2 rows are bad"):
        passed(result, "append")
    with pytest.raises(ConfigError, match="a guard answers with ok, mask and verdicts"):
        ask(lambda rows: True, {"a": [1, 2]})
    with pytest.raises(ConfigError, match="a guard's mask"):
        ask(lambda rows: Answer(), {"a": [1, 2, 3]})


def test_a_refusal_says_where_what_and_what_next():
    """And carries the result, also to another process."""
    result = Suite("s").expect("reward", finite=True).check(ROWS)

    error = result.error("append of 4 rows")

    assert str(error) == (
        "append of 4 rows: reward is finite: 1 of 4 rows are bad; row 1: nan; "
        "fix the rows, or change what the suite expects"
    )
    assert pickle.loads(pickle.dumps(error)).result.mask.tolist() == [True, False, True, True]


# Files ------------------------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
NUMBERS = st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)
PAIRS = st.tuples(NUMBERS, NUMBERS).map(sorted)
SEVERITY = st.sampled_from(SEVERITIES)
RULE_VALUES = {
    "type": st.sampled_from(["int64", "text", "list of text", "float32[2, ?]", "number"]),
    "dtype": st.sampled_from(["int64", "bfloat16"]),
    "shape": st.lists(st.none() | st.integers(0, 9), max_size=3),
    "nullable": st.booleans(),
    "finite": st.booleans(),
    "between": PAIRS,
    **dict.fromkeys(("at_least", "at_most", "above", "below"), NUMBERS | st.just("2026-01-31")),
    "one_of": st.lists(st.text(alphabet=st.characters(codec="utf-8")) | NUMBERS | st.booleans(), max_size=5),
    "matches": st.sampled_from([r"[a-z]+\d", "'\"", "a\nb", "# no comment", ": {x", "é", r"\\"]),
    "min_length": st.integers(0, 9),
    "max_length": st.integers(0, 9),
    "unique": st.booleans(),
    "check": st.just("test.suite"),
}
assert RULE_VALUES.keys() == set(RULES)


@st.composite
def suites(draw) -> Suite:
    suite = Suite(draw(NAMES))
    for _ in range(draw(st.integers(0, 3))):
        names = draw(st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=4, unique=True))
        assume(not any({low, high} <= set(names) for low, high in OPPOSITES))  # where no value is left between them
        suite.expect(draw(NAMES), severity=draw(SEVERITY), **{name: draw(RULE_VALUES[name]) for name in names})
    if draw(st.booleans()):
        suite.schema({"a": "int64", "b": pa.list_(pa.string())}, closed=draw(st.booleans()))
        suite.schema([Field("x", "uint8", shape=(None, 3), nullable=draw(st.booleans()))], closed=draw(st.booleans()))
    if draw(st.booleans()):
        suite.expect_rows('end >= start and word != "\'x"', severity=draw(SEVERITY)).expect_unique("a", "b")
        suite.expect_check("test.suite", draw(st.lists(NAMES, max_size=2)))
    if draw(st.booleans()):
        suite.stat(draw(NAMES), mean=draw(PAIRS), std=(None, draw(NUMBERS)), severity=draw(SEVERITY))
        suite.drift(
            draw(st.none() | st.lists(NAMES, min_size=1, max_size=2)), method=draw(st.sampled_from(["ks", "psi+ks"]))
        )
        suite.drift(effect_min=draw(st.none() | st.floats(0, 1)), alpha=0.01, min_rows=20)
        suite.outliers(draw(NAMES), threshold=draw(st.none() | st.floats(1, 9)), most=0.1)
    if draw(st.booleans()):
        suite.on(
            error=draw(st.sampled_from(ACTIONS)), warn=draw(st.sampled_from(ACTIONS)), persist=draw(st.integers(1, 3))
        )
    return suite


@given(suites())
def test_files_keep_a_suite_exactly(suite):
    """YAML and TOML, with any names and values; reading and writing again changes not a letter."""
    for write, read in ((Suite.to_yaml, Suite.from_yaml), (Suite.to_toml, Suite.from_toml)):
        text = write(suite)
        again = read(text)
        assert again.to_dict() == suite.to_dict()
        assert list(again.to_dict()) == list(suite.to_dict())
        assert repr(again) == repr(suite)
        assert write(again) == text


@pytest.mark.parametrize("name", ["suite.yaml", "suite.yml", "suite.toml"])
def test_a_suite_is_saved_and_loaded(tmp_path, name):
    """By the ending of the file."""
    suite = Suite("s").expect("a", between=(0, 1.5)).on(error="drop")

    suite.save(tmp_path / name)

    assert Suite.load(tmp_path / name) == suite
    assert Suite.load(tmp_path / name).fingerprint == suite.fingerprint
    with pytest.raises(ConfigError, match=r"\.yaml, \.yml or \.toml"):
        suite.save(tmp_path / "suite.json")


def test_a_suite_in_a_file_reads_like_a_page():
    """What is as usual is left out."""
    suite = (
        Suite("rollouts")
        .schema({"reward": "float64"})
        .expect("reward", between=(-1, 1))
        .stat("reward", mean=(None, 0.5))
    )

    assert suite.on(error="drop", persist=2).to_yaml() == (
        "suite: rollouts\nversion: 1\nschema:\n- column: reward\n  type: float64\nexpect:\n- column: reward\n"
        "  between: [-1, 1]\nstat:\n- column: reward\n  mean:\n    at_most: 0.5\n"
        "actions:\n  error: drop\n  persist: 2\n"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("expekt: []", "s.yaml: unknown key 'expekt'; did you mean 'expect'?"),
        ("expect: [{column: a, betwen: [0, 1]}]", "s.yaml: expect[0]: unknown key 'betwen'; did you mean 'between'?"),
        ("stat: [{column: a, maen: [0, 1]}]", "did you mean 'mean'?"),
        ("actions: {eror: drop}", "s.yaml: actions: unknown key 'eror'; did you mean 'error'?"),
        ("actions: {error: dorp}", "got 'dorp'; did you mean 'drop'?"),
        ("expect: [{column: a, severity: eror, finite: true}]", "did you mean 'error'?"),
        ("expect: [{column: a}]", "nothing is expected of it"),
        ("expect: [{finite: true}]", "the name of a column, got None"),
        ("expect: {column: a}", "expect is a list of entries"),
        ("expect: [3]", "expect[0] is a table"),
        ("expect: [{column: a, between: [1, 0]}]", "the lower bound comes first"),
        ("expect: [{column: a, at_least: '1e5'}]", "a number, got '1e5'"),
        ("expect: [{column: a, at_least: .nan}]", "a number, got nan"),
        ("expect: [{column: a, finite: 1}]", "true or false, got 1"),
        ("expect: [{column: a, matches: '(?=a)'}]", "is no pattern of RE2"),
        ("expect: [{column: a, matches: '('}]", "is no pattern of RE2"),
        ("expect: [{column: a, type: flaot32}]", "unknown dtype 'flaot32'"),
        (f"stat: [{{column: a, mean: [0, 1{400 * '0'}]}}]", "mean: a number of 1,329 bits is beyond float64"),
        ("schema: [{column: a, type: {b: x}}]", "type: the name of one type, got {'b': 'x'}"),
        ("expect: [{column: a, check: os.system}]", "check 'os.system' is not registered here"),
        ("checks: [{check: builtins.eval}]", "is not registered here"),
        ("rows: [{rule: '__import__(\"os\")'}]", "is no function here"),
        ("unique: [{columns: 3}]", "s.yaml: unique[0]: columns: a list of names, got 3"),
        ("drift: [{method: psy}]", "did you mean 'psi'?"),
        ("drift: [{alpha: 2}]", "between 0 and 1"),
        ("outliers: [{column: a, most: 1}]", "from 0 to below 1"),
        ("version: 2", "version 2 of suites is not known here"),
        ("suite: ''", "text that is not empty"),
        ("1: 2", "s.yaml: unknown key '1'"),
        ("expect: [{column: a, 1: 2}]", "s.yaml: expect[0]: unknown key '1'"),
        ("unique: [{column: a}]", "s.yaml: unique[0]: columns: a list of names, got None"),
        ("3", "a table of names and values, got int"),
        ("a: 1\na: 2", "key 'a' stands there twice"),
        ("expect: &e []\nrows: *e", "references (*name) are not read"),
        ("expect: !!python/object/apply:os.system [ls]", "no YAML that a suite can be in"),
        ("expect: [", "no YAML that a suite can be in"),
        ("[" * 5_000, "no YAML that a suite can be in"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(text, why):
    """And with the nearest name, where a name is wrong."""
    with pytest.raises(ConfigError) as caught:
        Suite.from_yaml(text, source="s.yaml")

    assert why in str(caught.value)
    assert str(caught.value).startswith("s.yaml")


def test_every_wrong_value_of_a_file_is_named():
    """Not one after the other."""
    text = "expect: [{column: a, finite: 1, between: 3}, {column: b, finit: true}]\ndrift: [{alpha: 2}]"

    with pytest.raises(ConfigError) as caught:
        Suite.from_yaml(text, source="s.yaml")

    assert sorted(str(caught.value).splitlines()) == [
        "s.yaml: drift[0]: alpha: the rate of false alarms, between 0 and 1, got 2",
        "s.yaml: expect[0]: column 'a': between: two bounds, (low, high), got 3; for one use at_least or at_most",
        "s.yaml: expect[0]: column 'a': finite: true or false, got 1",
        "s.yaml: expect[1]: unknown key 'finit'; did you mean 'finite'?",
    ]


def test_the_json_schema_describes_every_rule_statistic_and_option():
    """From the same tables as the parser, so an editor knows what a suite accepts."""
    described = Suite.json_schema()
    entries = {name: set(entry["properties"]) for name, entry in described["$defs"].items()}

    assert list(described["properties"]) == [*("suite", "version"), *KINDS, *("closed", "actions")]
    assert entries["ExpectEntry"] == {"column", "severity", "why", *RULES}
    assert entries["StatEntry"] == {"column", "severity", "why", "min_rows", *STATISTICS}
    assert entries["OutliersEntry"] >= {name for options in DETECTOR_OPTIONS.values() for name in options}
    assert all(entry["additionalProperties"] is False for entry in described["$defs"].values())
    assert described["$defs"]["ExpectEntry"]["properties"]["finite"]["type"] == "boolean"


def test_a_statistic_of_too_few_rows_is_inconclusive():
    """By ``min_rows``: one null is not a share of nulls of 100 %."""
    suite = Suite().stat("x", null_share=(0, 0.1), min_rows=20, severity="error", why="2 of 100 rows")

    few, many = suite.check({"x": [None]}), suite.check({"x": [None] * 20})

    assert few.ok
    assert str(few.verdicts[0]) == "x has a null_share between 0 and 0.1: insufficient (1 row, and it takes 20)"
    assert many.failed
    assert Suite.from_yaml(suite.to_yaml()).to_dict()["stat"][0]["why"] == "2 of 100 rows"


def test_the_page_and_the_docstrings_name_what_the_tables_hold():
    """Rules, statistics, distances and detectors are documented and exported."""
    page = (Path(__file__).parents[3] / "docs" / "guards.md").read_text()
    documented = [
        (page, [*RULES, *DISTANCES, *OUTLIER_METHODS, *DETECTORS]),
        (Suite.expect.__doc__, RULES),
        (Suite.drift.__doc__, DISTANCES),
        (Suite.outliers.__doc__, [*OUTLIER_METHODS, *DETECTORS]),
    ]

    missing = [name for text, names in documented for name in names if not re.search(rf"(?<!\w){name}(?!\w)", text)]

    assert missing == []
    exported = {*DISTANCES, *OUTLIER_METHODS, *(kind.__name__ for kind in DETECTORS.values())}
    assert exported <= set(guards.__all__)


def test_only_files_need_pydantic():
    """A suite is built, copied, compared, unpickled, asked and written without it."""
    state = pickle.dumps(Suite("s").expect("a", at_most=1).drift())
    program = (
        "import pickle, sys; from poolish import Suite;"
        f"suite = pickle.loads({state!r}); assert not suite.check({{'a': [1, 2]}}).ok;"
        "suite.expect('b', finite=True).stat('a', mean=(0, 1)).drift().outliers('a').on(error='drop').copy();"
        "text = suite.to_yaml(); suite.diff(Suite()); suite.fingerprint; assert 'pydantic' not in sys.modules;"
        "assert Suite.from_yaml(text) == suite; assert 'pydantic' in sys.modules"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_diff_names_what_changed():
    """Entry by entry, value by value."""
    old = Suite("s").expect("a", between=(0, 1)).expect_unique("a")
    new = Suite("s").expect("a", between=(0, 2), finite=True).on(error="drop")

    assert old.diff(old.copy()) == []
    assert old.diff(new) == [
        "expect[0].between: [0, 1] -> [0, 2]",
        "expect[0].finite: added True",
        "unique: removed [{'columns': ['a']}]",
        "actions: added {'error': 'drop'}",
    ]


def test_plain_words_mean_what_they_say():
    """``no`` is a text, 1e5 a number, 010 neither eight nor ten; and what we write, every YAML reader reads so."""
    suite = Suite.from_yaml("suite: no\nexpect: [{column: on, one_of: [yes, true, 1e5, 010, 1:30, 2026-01-31, ~x]}]")
    words = [
        "no",
        "yes",
        "1e5",
        "010",
        "1:30",
        "0x1f",
        "1_000",
        "null",
        "~",
        "",
        "true",
        ".inf",
        "2026-01-31",
        "=",
        "<<",
    ]

    assert suite.name == "no"
    assert suite.to_dict()["expect"] == [
        {"column": "on", "one_of": ["yes", True, 1e5, "010", "1:30", "2026-01-31", "~x"]},
    ]
    text = Suite().expect("on", one_of=words).to_yaml()
    assert Suite.from_yaml(text).to_dict()["expect"][0]["one_of"] == words
    assert yaml.safe_load(text)["expect"] == [{"column": "on", "one_of": words}]


def test_a_file_of_references_does_not_expand(tmp_path):
    """The billion laughs stay unheard, and a file has a size."""
    laughs = "a: &a [x, x]\n" + "".join(
        f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )

    with pytest.raises(ConfigError, match="references"):
        Suite.from_yaml(laughs)
    (tmp_path / "large.toml").write_text("# " + "x" * 2_000_000)
    with pytest.raises(LimitExceeded, match="1,000,000 bytes"):
        Suite.load(tmp_path / "large.toml")
    (tmp_path / "bytes.yaml").write_bytes(b"suite: \xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        Suite.load(tmp_path / "bytes.yaml")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"between": 3}, "two bounds"),
        ({"between": ("2026-01-01", 3)}, "both are of a kind"),
        ({"at_least": "soon"}, "a number, or a time like"),
        ({"one_of": "abc"}, "a list of values"),
        ({"one_of": [b"a"]}, "a number, got b'a'"),
        ({"one_of": [math.nan]}, "a number, got nan"),
        ({"shape": 3}, "a list of sizes"),
        ({"min_length": -1}, "a whole number from 0"),
        ({"finit": True}, "did you mean 'finite'"),
        ({"type": "no such"}, "or one of number, integer"),
        ({"type": {"a": "x"}}, "type: the name of one type, got {'a': 'x'}"),
        ({"dtype": [("a", "int32")]}, "dtype: the name of one type, got"),
        ({"between": (0, 10**400)}, "between: a number of 1,329 bits is beyond float64"),
        ({"at_least": -(10**400)}, "at_least: a number of 1,329 bits is beyond float64"),
        ({"one_of": [10**400]}, "one_of: a number of 1,329 bits is beyond float64"),
    ],
)
def test_wrong_arguments_are_refused_where_they_enter(arguments, why):
    """In code as in files."""
    with pytest.raises(ConfigError, match=why):
        Suite().expect("a", **arguments)


def test_a_suite_shows_what_it_expects():
    """As text and as a table."""
    suite = Suite("s").expect("a", finite=True).drift().stat("b", mean=(0, 1))

    assert "error: a is finite" in repr(suite)
    assert "3 checks" in repr(suite)
    assert "<table" in suite._repr_html_()
