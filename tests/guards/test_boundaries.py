"""What comes in at the edges of guards is right or refused: numbers of NumPy, URLs, rules that cannot be, answers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from poolish import DataProviderBase, DatasetBuffer, DatasetRecipe
from poolish.cli.app import app
from poolish.errors import ConfigError
from poolish.guards import CircuitBreaker, OneClassSVMOutliers, Retry, StreamGuard, Suite, register_check
from poolish.guards.stats.detectors import AutoencoderOutliers, IsolationForestOutliers

ROWS = {"x": np.array([1.0, 2.0, 3.0])}


# Numbers of NumPy ---------------------------------------------------------------------------------------------------


def test_numbers_of_numpy_are_numbers():
    """Wherever a suite takes a number, a flag or a list of them; its files and fingerprints are the same."""
    theirs = (
        Suite()
        .expect("a", between=np.array([0, 2]), shape=(np.int64(3),), nullable=np.bool_(False), min_length=np.int64(1))
        .expect("b", one_of=np.array([1, 2]), at_least=np.float64(0.5), max_length=np.uint8(9))
        .stat("a", mean=(np.int64(0), np.float64(1)), std={"at_least": np.int64(0)})
        .drift(alpha=np.float64(0.1), effect_min=np.int64(0), min_rows=np.int64(20))
        .outliers("a", threshold=np.int64(3), most=np.float64(0.1))
        .on(persist=np.int64(2))
    )
    ours = (
        Suite()
        .expect("a", between=(0, 2), shape=(3,), nullable=False, min_length=1)
        .expect("b", one_of=[1, 2], at_least=0.5, max_length=9)
        .stat("a", mean=(0, 1.0), std={"at_least": 0})
        .drift(alpha=0.1, effect_min=0, min_rows=20)
        .outliers("a", threshold=3, most=0.1)
        .on(persist=2)
    )

    assert theirs.to_dict() == ours.to_dict()
    assert theirs.to_yaml() == ours.to_yaml()
    assert json.loads(json.dumps(theirs.to_dict())) == ours.to_dict()


def test_results_and_states_are_json_whatever_the_rows_are():
    """Of NumPy's narrow types too."""
    rows = {"x": np.arange(8, dtype=np.float32), "n": np.arange(8, dtype=np.uint8)}
    suite = Suite().expect("n", at_most=np.int8(3)).stat("x", mean=(np.float32(0), 1)).outliers("x")
    guard = suite.guard(window=np.int64(4))

    found = guard(rows)

    json.loads(found.to_json())
    again = suite.guard(window=4)
    again.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    assert again.state_dict() == guard.state_dict()


@pytest.mark.parametrize(
    "detector",
    [
        IsolationForestOutliers(contamination=np.float32(0.25), n_trees=np.int64(5), max_samples=np.int32(9), seed=3),
        OneClassSVMOutliers(
            contamination=np.float32(0.25), nu=np.float32(0.5), max_rows=np.int64(50), seed=np.int64(3)
        ),
        AutoencoderOutliers(hidden=np.int64(4), code=np.int8(2), epochs=np.int64(1), learning_rate=np.float32(0.5)),
    ],
)
def test_detectors_with_numbers_of_numpy_are_saved(tmp_path: Path, detector: Any):
    """And loaded as they were."""
    rows = np.random.default_rng(0).normal(size=(40, 2))
    detector.fit(rows).save(tmp_path / "detector")

    again = type(detector).load(tmp_path / "detector")

    np.testing.assert_array_equal(again.scores(rows), detector.scores(rows))


# URLs ---------------------------------------------------------------------------------------------------------------


def test_urls_are_refused_where_only_paths_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Saving to one, or loading from one, names what can; no folder ``s3:`` appears."""
    monkeypatch.chdir(tmp_path)
    Path("s3:/b").mkdir(parents=True)
    detector = OneClassSVMOutliers().fit(np.random.default_rng(0).normal(size=(20, 2)))
    calls = [
        lambda: Suite().save("s3://b/suite.yaml"),
        lambda: Suite.load("s3://b/suite.yaml"),
        lambda: detector.save("s3://b/detector"),
        lambda: OneClassSVMOutliers.load("s3://b/detector"),
    ]

    for call in calls:
        with pytest.raises(ConfigError, match=r"'s3://b/.*': must be a local path"):
            call()

    assert list(Path("s3:/b").iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "s3://b/x.parquet"],
        ["check", "x.csv", "--html", "s3://b/report.html"],
        ["check", "x.csv", "--suite", "s3://b/suite.yaml"],
        ["check", "x.csv", "--reference", "s3://b/x.csv"],
        ["bake", "s3://b/recipe.yaml", "-o", "out"],
        ["bake", "recipe.yaml", "-o", "s3://b/out"],
        ["bake", "recipe.yaml", "-o", "out", "--cache", "s3://b/cache"],
        ["new", "s3://b/workspace"],
        ["queue", "status", "s3://b/data"],
        ["queue", "purge", "s3://b/data", "--yes"],
    ],
)
def test_commands_refuse_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]):
    """With exit code 2, before anything is made."""
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("a\n1\n")
    Path("recipe.yaml").write_text("name: r\ninstructions: [{ingredient: a, source: x.csv}]\n")

    done = CliRunner().invoke(app, arguments)

    assert done.exit_code == 2, done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "x.csv"]


# Rules that cannot be -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (lambda suite: suite.expect("x", at_least=5, at_most=1), "no value is at_least=5 and at_most=1"),
        (lambda suite: suite.expect("x", above=5, below=np.float64(1)), "no value is above=5"),
        (lambda suite: suite.expect("x", at_least="2026-02-01", below="2026-01-01"), "no value is at_least"),
        (lambda suite: suite.expect("x", min_length=5, max_length=1), "no value is min_length=5"),
        (lambda suite: suite.expect("x", at_least=np.nan), "a number, got nan"),
        (lambda suite: suite.stat("x", mean={"at_least": 5, "at_most": 1}), "no number is between"),
        (lambda suite: suite.drift([]), "nothing would be compared"),
        (lambda suite: suite.drift(effect_min=-0.1), "a distance from 0"),
        (lambda suite: suite.outliers("x", threshold=0), "a distance above 0"),
        (lambda suite: suite.outliers("x", threshold=np.nan), "a number"),
    ],
)
def test_a_rule_that_says_nothing_or_refuses_all_is_refused(say: Any, why: str):
    """When it is said, not when data comes."""
    with pytest.raises(ConfigError, match=why):
        say(Suite())


@pytest.mark.parametrize("closed", ["yes", 1, None])
def test_closed_is_true_or_false(closed: Any):
    """A word that is neither does not open the schema."""
    plain = Suite().schema({"x": "float64"}).to_dict()

    with pytest.raises(ConfigError, match="closed: true or false"):
        Suite.from_dict(plain | {"closed": closed})
    with pytest.raises(ConfigError, match="has a schema"):
        Suite.from_dict({"suite": "s", "closed": True})


def test_drift_without_a_reference_guards_nothing_and_is_refused():
    """At every boundary, as an inconclusive verdict lets all rows pass; ``check`` says so in its verdict."""
    suite = Suite().drift(["x"])
    boundaries = [
        lambda: DatasetBuffer(guard=suite),
        lambda: DatasetBuffer().append([{"x": 1.0}], guard=suite),
        lambda: suite.guard(),
        lambda: StreamGuard(suite),
        lambda: DatasetRecipe("r").prepare_step("check", suite),
    ]

    for boundary in boundaries:
        with pytest.raises(ConfigError, match=r"asks for drift.*suite\.guard\(reference"):
            boundary()

    assert [verdict.status for verdict in suite.check(ROWS).verdicts] == ["no reference"]
    assert suite.guard(ROWS, window=3)({"x": np.array([1.0])}).ok


@pytest.mark.parametrize("n_rows", [0, 3])
def test_a_check_of_a_column_that_is_not_there_fails(n_rows: int):
    """Of any kind, and without rows too."""
    rows = {"other": np.zeros(n_rows)}
    suite = (
        Suite()
        .expect("x", finite=True)
        .expect_rows("x > 0")
        .expect_unique("x")
        .expect_check("boundaries.any", ["x"])
        .stat("x", mean=(0, 1), severity="error")
        .outliers("x", severity="error")
        .drift(["x"], severity="error")
    )

    found = suite.check(rows, ROWS)

    assert [verdict.status for verdict in found.verdicts] == ["failed"] * 7


# Answers of functions -------------------------------------------------------------------------------------------------


@register_check("boundaries.any")
def anything(values: Any) -> Any:
    return np.ones(len(values), bool)


@register_check("boundaries.writes")
def writes(values: Any) -> Any:
    values[0] = 0
    return True


def test_a_check_cannot_change_the_rows():
    """It looks at the rows themselves, so writing there is an error and not other data."""
    rows = {"x": np.array([1.0, 2.0])}

    with pytest.raises(ValueError, match="read-only"):
        Suite().expect("x", check="boundaries.writes").check(rows)

    assert rows["x"].tolist() == [1.0, 2.0]


def test_a_guard_cannot_change_what_is_published(tmp_path: Path):
    """Nor what a consumer hands out."""

    def doubling(rows: Any) -> Any:
        rows["x"] *= 2
        return SimpleNamespace(ok=True, mask=np.ones(2, bool), verdicts=[])

    class Ones(DataProviderBase):
        def build_meta(self) -> dict[str, Any]:
            return {"batch_schema": [{"name": "x", "dtype": "float32", "shape": []}]}

        def sample_batch(self, split: str, rng: Any) -> dict[str, Any]:
            return {"x": np.ones(2, "float32")}

    config = {"dataset": "ones", "batch_size": 2, "block_size": 1}
    with Ones(config, path=tmp_path / "ones", guard=doubling) as provider, pytest.raises(ValueError, match="read-only"):
        provider.publish("train")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"ok": True, "mask": [True, False]}, "said ok and blamed 1 row;"),
        ({"ok": False, "mask": [True]}, r"each of 2 rows, got bool\(1,\)"),
        ({"ok": False, "mask": [1, 0]}, "got int64"),
        ({"ok": False, "mask": [True, False], "action": "drpo"}, "did you mean 'drop'"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(answer: dict[str, Any], why: str):
    """Of a guard that is a function: nothing enters on its word."""
    buffer = DatasetBuffer(
        guard=lambda rows: SimpleNamespace(verdicts=[], **answer | {"mask": np.array(answer["mask"])})
    )

    with pytest.raises(ConfigError, match=why):
        buffer.append([{"x": 1}, {"x": 2}])

    assert len(buffer) == 0


# Ctrl-C ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("named", ["builtins.BaseException", "builtins.KeyboardInterrupt"])
def test_the_end_of_a_program_is_no_failure(error: type[BaseException], named: str):
    """It is neither retried, in any attempt, nor counted, whatever names are listed."""
    raised = iter([OSError("flaps"), error(), None])

    def read() -> None:
        following = next(raised)
        if following is not None:
            raise following

    retry = Retry(attempts=5, base_delay=0, retry_on=(OSError, named), sleep=lambda seconds: None)
    breaker = CircuitBreaker(error_rate=0, window=1, counts=(named,))
    with pytest.raises(error):
        retry.call(read)
    raised = iter([error()])
    with pytest.raises(error):
        breaker.call(read)

    assert breaker.state == "closed"
    assert retry.stats.retries == 1
