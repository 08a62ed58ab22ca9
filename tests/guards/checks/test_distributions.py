"""Outliers by fitted detectors, in a suite: learnt from a reference, kept without pickle, checked at every boundary."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from poolish import DataProviderBase, DatasetBuffer, DatasetConsumer, DatasetRecipe
from poolish.cli.app import app
from poolish.errors import ConfigError, CorruptDataError, RecipeError, SchemaError
from poolish.guards import Profile, Reference, Suite, validate
from poolish.serve import rejections

rng = np.random.default_rng(0)
ANGLES = rng.uniform(0, 6.28, 600)
GOOD = {
    "x": np.cos(ANGLES) + rng.normal(0, 0.05, 600),
    "y": np.sin(ANGLES) + rng.normal(0, 0.05, 600),
    "name": ["good"] * 600,
}
#: Four usual rows of the circle, and between them one that is far away.
ROWS = {
    "x": np.array([1.0, 0.0, 5.0, -1.0, 0.0]),
    "y": np.array([0.0, 1.0, 5.0, 0.0, -1.0]),
    "name": ["a", "b", "c", "d", "e"],
}
STRANGE = 2
OPTIONS = {"isolation_forest": {"n_trees": 30}, "one_class_svm": {}, "autoencoder": {"epochs": 5, "hidden": 8}}
each = pytest.mark.parametrize("method", OPTIONS)


def asking(method: str, **options: Any) -> Suite:
    """A suite that drops outliers."""
    suite = Suite("circle").outliers(columns=["x", "y"], method=method, severity="error", **OPTIONS[method], **options)
    return suite.on(error="drop")


def without_library(code: str) -> subprocess.CompletedProcess[str]:
    """Run code where neither scikit-learn nor torch can be imported."""
    blocked = "import sys; sys.modules['sklearn'] = sys.modules['torch'] = None\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)


# What a fitted suite says ---------------------------------------------------------------------------------------


@each
def test_outliers_are_bad_rows_by_themselves(method: str):
    """Each row is judged against the reference, not against the others: alone, together, in any batch."""
    fitted = asking(method, contamination=0.001).fit(GOOD)

    together = fitted.check(ROWS)
    alone = [fitted.check({name: values[i : i + 1] for name, values in ROWS.items()}).ok for i in range(5)]

    assert together.mask.tolist() == alone == [i != STRANGE for i in range(5)]
    assert together.kept.tolist() == alone
    assert together.failures[0].level == "statistics"
    assert "x, y are like the reference" in together.reason(STRANGE)


@each
def test_contamination_is_the_share_of_the_reference_beyond(method: str):
    """So a user chooses how many good rows are lost."""
    fitted = asking(method, contamination=0.05).fit(GOOD)

    assert 0.03 <= (~fitted.check(GOOD).mask).mean() <= 0.06


def test_null_passes_and_what_is_no_number_does_not():
    """As in every other check, whether a value may be missing is another rule."""
    fitted = asking("one_class_svm", contamination=0.001).fit(GOOD)

    result = fitted.check(pa.table({"x": [1.0, None, float("nan"), float("inf")], "y": [0.0, 0.0, 0.0, 0.0]}))

    assert result.mask.tolist() == [True, True, False, False]


def test_a_column_of_another_kind_fails_and_no_rows_pass():
    """It is a verdict about the data, not an error of the guard."""
    fitted = asking("one_class_svm").fit(GOOD)

    assert not fitted.check({"x": ["text"], "y": [0.0]}).ok
    assert not fitted.check({"x": [0.0]}).ok
    assert fitted.check({"x": np.empty(0), "y": np.empty(0)}).ok


def test_without_columns_all_numbers_of_the_reference_count():
    """Text stays out, arrays give a number for each element."""
    suite = Suite().outliers(method="one_class_svm", severity="error")
    fitted = suite.fit({**GOOD, "pair": np.stack([GOOD["x"], GOOD["y"]], axis=1)})

    (detector,) = fitted.reference.detectors.values()

    assert detector.columns == ["x", "y", "pair"]


def test_methods_of_single_columns_take_several_columns():
    """One check for each, as before; a method that judges rows takes no share and no threshold."""
    both = Suite().outliers(columns=["x", "y"], method="iqr")

    assert both == Suite().outliers("x", method="iqr").outliers("y", method="iqr")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"method": "isolation_forrest"}, "did you mean 'isolation_forest'"),
        ({"method": "isolation_forest", "most": 0.1}, "has no most; it takes contamination"),
        ({"method": "isolation_forest", "threshold": 3}, "has no threshold; it takes contamination"),
        ({"method": "isolation_forest", "epochs": 3}, "has no option 'epochs'; it has contamination, seed, n_trees"),
        ({"method": "isolation_forest", "n_tree": 3}, "unknown key 'n_tree'; did you mean 'n_trees'"),
        ({"method": "one_class_svm", "contamination": 0.9}, "the share of rows that are outliers"),
        ({"method": "autoencoder", "columns": []}, "columns are different names"),
        ({"method": "autoencoder", "columns": ["x", "x"]}, "columns are different names"),
        ({"method": "iqr", "columns": ["x"], "contamination": 0.1}, "contamination is for isolation_forest"),
        ({"method": "iqr"}, "name one, or columns="),
    ],
)
def test_what_a_method_does_not_take_is_refused(wrong: dict[str, Any], why: str):
    """With the option that it does take."""
    with pytest.raises(ConfigError, match=why):
        Suite().outliers(**wrong)


# The reference --------------------------------------------------------------------------------------------------


@each
def test_the_reference_is_saved_with_profile_and_detectors(tmp_path: Path, method: str):
    """Suite and reference come back from two files, say the same, and need no library that fitted them."""
    suite = asking(method).drift(["x"])
    fitted = suite.fit(GOOD)
    suite.save(tmp_path / "suite.yaml")
    fitted.reference.save(tmp_path / "reference.safetensors")

    again = Suite.load(tmp_path / "suite.yaml").fit(Reference.load(tmp_path / "reference.safetensors"))
    elsewhere = without_library(
        "from poolish.guards import Reference, Suite\n"
        f"suite = Suite.load({str(tmp_path / 'suite.yaml')!r})\n"
        f"fitted = suite.fit(Reference.load({str(tmp_path / 'reference.safetensors')!r}))\n"
        "print(fitted.check({'x': [1.0, 5.0], 'y': [0.0, 5.0]}).mask.tolist())"
    )

    assert again == fitted
    assert again.fingerprint == fitted.fingerprint != suite.fingerprint
    assert again.check(ROWS).mask.tolist() == fitted.check(ROWS).mask.tolist()
    assert elsewhere.stdout.strip() == "[True, False]", elsewhere.stderr
    assert Suite.from_toml(suite.to_toml()) == suite


def test_a_damaged_reference_is_refused(tmp_path: Path):
    """By its checksum, wherever a byte is wrong."""
    path = tmp_path / "reference.safetensors"
    asking("one_class_svm").fit(GOOD).reference.save(path)
    whole = path.read_bytes()
    for at in (9, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptDataError):
            Reference.load(path)


def test_a_reference_for_other_checks_is_refused():
    """A detector with other columns or options would judge by something else."""
    known = asking("one_class_svm").fit(GOOD).reference

    with pytest.raises(ConfigError, match="it holds no one_class_svm with these columns and options"):
        asking("one_class_svm", nu=0.5).fit(known)
    with pytest.raises(ConfigError, match="cannot be fitted on a Profile"):
        asking("one_class_svm").fit(Profile.of(GOOD))
    with pytest.raises(SchemaError, match="there is no column 'y'"):
        asking("one_class_svm").fit({"x": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("method", "extra"), [("isolation_forest", "guards"), ("one_class_svm", "guards"), ("autoencoder", "torch")]
)
def test_fitting_without_the_library_names_the_extra(method: str, extra: str):
    """The library is needed to fit only, and the error says how to get it."""
    done = without_library(
        "from poolish.guards import Suite\n"
        f"Suite().outliers(columns=['x'], method={method!r}).fit({{'x': [1.0, 2.0, 3.0]}})"
    )

    assert f"pip install poolish[{extra}]" in done.stderr


def test_a_copy_keeps_the_reference_and_shares_it():
    """It is shared, not fitted again; another fitted check on the copy needs a fit of its own."""
    fitted = asking("one_class_svm").fit(GOOD)

    copied = copy.copy(fitted).expect("x", finite=True)
    extended = fitted.copy().outliers(columns=["x"], method="one_class_svm")

    assert copied.reference is fitted.reference
    with pytest.raises(ConfigError, match="asks for outliers by one_class_svm, and there is no reference"):
        DatasetBuffer(guard=extended)


# The boundaries ------------------------------------------------------------------------------------------------------


class Circles(DataProviderBase):
    """Batches of the five rows."""

    def build_meta(self) -> dict[str, Any]:
        return {"batch_schema": [{"name": name, "dtype": "float64", "shape": []} for name in ("x", "y")]}

    def sample_batch(self, split: str, rng: Any) -> dict[str, Any]:
        return {name: ROWS[name] for name in ("x", "y")}


CONFIG = {"dataset": "circles", "batch_size": 5, "block_size": 1, "splits": ["train"], "max_batches": 2}


def appended(suite: Suite, folder: Path) -> list[float]:
    buffer = DatasetBuffer(guard=suite)
    buffer.append(pa.table(ROWS))
    assert buffer.rejected.n_rows == 1
    return buffer.to_arrow()["x"].to_pylist()


def baked(suite: Suite, folder: Path) -> list[float]:
    recipe = DatasetRecipe("circles").add_ingredient("rows", pa.table(ROWS)).prepare_step("usual", suite)
    return recipe.bake(on_error="skip").buffer.to_arrow()["x"].to_pylist()


def baked_behind_a_guard(suite: Suite, folder: Path) -> list[float]:
    recipe = DatasetRecipe("circles").add_ingredient("rows", pa.table(ROWS))
    return recipe.bake(guard=suite).buffer.to_arrow()["x"].to_pylist()


def provided(suite: Suite, folder: Path) -> list[float]:
    with Circles(CONFIG, path=folder / "data", guard=suite) as provider:
        provider.run()
    assert [each["rejected"][0]["row"] for each in rejections(folder / "data")] == [STRANGE] * 2
    with DatasetConsumer(folder / "data", output="numpy") as consumer:
        return next(iter(consumer))[0].tolist()


def consumed(suite: Suite, folder: Path) -> list[float]:
    with Circles(CONFIG, path=folder / "data") as provider:
        provider.run()
    with DatasetConsumer(folder / "data", output="numpy", guard=suite) as consumer:
        return next(iter(consumer))[0].tolist()


def watched(suite: Suite, folder: Path) -> list[float]:
    guard = suite.guard(window=100)
    return ROWS["x"][guard(ROWS).kept].tolist()


BOUNDARIES: dict[str, Callable[[Suite, Path], list[float]]] = {
    "append": appended,
    "bake": baked,
    "bake, guarded": baked_behind_a_guard,
    "provider": provided,
    "consumer": consumed,
    "stream guard": watched,
}


@pytest.mark.parametrize(("method", "boundary"), list(zip([*OPTIONS, *OPTIONS], BOUNDARIES, strict=True)))
def test_every_boundary_leaves_the_outlier_out(tmp_path: Path, method: str, boundary: str):
    """The bad row only, at once, whatever the batch; a boundary does not know which detector it asks."""
    fitted = asking(method, contamination=0.001).fit(GOOD)

    assert BOUNDARIES[boundary](fitted, tmp_path) == [1.0, 0.0, -1.0, 0.0]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_every_boundary_refuses_a_suite_that_was_not_fitted(tmp_path: Path, boundary: str):
    """Without a reference the check would pass everything."""
    with pytest.raises(ConfigError, match=r"outliers by one_class_svm.*suite.fit\(reference\)"):
        BOUNDARIES[boundary](asking("one_class_svm"), tmp_path)


def test_a_guard_of_windows_takes_the_reference_as_rows_or_fitted():
    """``suite.guard(reference)`` fits; the state is of that fit, and a guard of another one refuses it."""
    suite = asking("one_class_svm", contamination=0.001).drift(["x"])
    of_rows, of_fit = suite.guard(GOOD, window=100), suite.guard(suite.fit(GOOD).reference, window=100)
    other = suite.guard({name: values[:300] for name, values in GOOD.items()}, window=100)

    of_fit.load_state_dict(of_rows.state_dict())

    assert of_rows(ROWS).kept.tolist() == of_fit(ROWS).kept.tolist() == [True, True, False, True, True]
    with pytest.raises(Exception, match="another suite"):
        other.load_state_dict(of_rows.state_dict())


@pytest.mark.parametrize("reference", ["good.parquet", "reference.safetensors"])
def test_validate_and_the_command_fit_on_the_reference_or_load_it(tmp_path: Path, reference: str):
    """The same verdict for good rows in a file and for what was fitted on them."""
    suite = asking("one_class_svm", contamination=0.001)
    suite.save(tmp_path / "suite.yaml")
    pa.parquet.write_table(pa.table(GOOD), tmp_path / "good.parquet")
    suite.fit(GOOD).reference.save(tmp_path / "reference.safetensors")
    pa.parquet.write_table(pa.table(ROWS), tmp_path / "rows.parquet")

    found = validate(tmp_path / "rows.parquet", suite=suite, reference=tmp_path / reference)
    options = ["--suite", str(tmp_path / "suite.yaml"), "--reference", str(tmp_path / reference)]
    done = CliRunner().invoke(app, ["check", str(tmp_path / "rows.parquet"), *options])

    assert [verdict.n_bad for verdict in found.verdicts] == [1]
    assert done.exit_code == 1
    assert "x, y are like the reference (one_class_svm): 1 of 5 rows are bad; row 2" in done.output
    assert "no reference" in str(validate(tmp_path / "rows.parquet", suite=suite))


def test_a_recipe_with_a_fitted_suite_is_no_file():
    """A file holds plain values; the suite's reference is not among them."""
    fitted = asking("one_class_svm").fit(GOOD)
    recipe = DatasetRecipe("circles").add_ingredient("rows", "rows.parquet").prepare_step("usual", fitted)

    with pytest.raises(RecipeError, match="fitted on a reference"):
        recipe.to_dict()
