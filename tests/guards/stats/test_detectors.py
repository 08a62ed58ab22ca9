"""Fitted detectors: strange rows are found, scores are scikit-learn's, files hold no code and are checked."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from poolish.errors import ConfigError, CorruptDataError, SchemaError
from poolish.guards import AutoencoderOutliers, IsolationForestOutliers, OneClassSVMOutliers
from poolish.guards.stats.detectors import Detector, as_arrays, scaling, standardized
from poolish.guards.stats.serialization import sealed

OPTIONS: dict[type[Detector], dict[str, Any]] = {
    IsolationForestOutliers: {"n_trees": 50},
    OneClassSVMOutliers: {},
    AutoencoderOutliers: {"epochs": 8, "hidden": 16},
}
each = pytest.mark.parametrize("kind", OPTIONS, ids=lambda kind: kind.__name__)

rng = np.random.default_rng(0)
#: A curve in three dimensions with noise; what is far from it is strange.
ANGLES = rng.uniform(0, 6.28, 800)
ROWS = np.stack([np.cos(ANGLES), np.sin(ANGLES), ANGLES / 3], axis=1) + rng.normal(0, 0.05, (800, 3))
STRANGE = np.array([[3.0, 3.0, 5.0], [-4.0, -4.0, -3.0], [0.0, 0.0, 40.0]])


def fitted(kind: type[Detector], rows: Any = ROWS, **options: Any) -> Detector:
    return kind(**{**OPTIONS[kind], **options}).fit(rows)


# What every detector does ---------------------------------------------------------------------------------------


@each
def test_strange_rows_are_found(kind: type[Detector]):
    """And of the usual ones about as many as contamination says, not the half that libraries flag."""
    detector = fitted(kind, contamination=0.02)

    assert detector.mask(STRANGE).all()
    assert detector.mask(ROWS).mean() == pytest.approx(0.02, abs=0.005)
    assert (detector.scores(STRANGE) > detector.threshold).all()
    assert detector.outliers(STRANGE).count == 3


@each
def test_strange_rows_among_those_fitted_are_found(kind: type[Detector]):
    """A few of them do not make themselves usual."""
    rows = np.concatenate([ROWS, STRANGE])

    assert fitted(kind, rows).mask(rows)[-3:].sum() >= 2


@each
def test_the_same_rows_and_seed_give_the_same_detector(kind: type[Detector]):
    """To the last bit, whatever was drawn elsewhere."""
    import torch

    once = fitted(kind, seed=3).scores(ROWS)
    torch.rand(3)
    np.random.random(3)  # noqa: NPY002
    again = fitted(kind, seed=3).scores(ROWS)

    assert once.tolist() == again.tolist()


@each
def test_saved_detectors_score_the_same(kind: type[Detector], tmp_path: Path):
    """From a file that any reader of safetensors understands."""
    import safetensors.numpy as safetensors

    detector = fitted(kind, {"a": ROWS[:, 0], "b": ROWS[:, 1:]})
    rows = {"b": STRANGE[:, 1:], "a": STRANGE[:, 0], "word": ["x"] * 3}
    detector.save(tmp_path / "detector.safetensors")

    again = kind.load(tmp_path / "detector.safetensors")

    assert again.scores(rows).tolist() == detector.scores(rows).tolist()
    assert again.mask(rows).all()
    assert (again.columns, again.contamination) == (["a", "b"], 0.01)
    assert safetensors.load_file(tmp_path / "detector.safetensors").keys() == detector._arrays.keys()


def test_saved_detectors_need_numpy_only(tmp_path: Path):
    """Neither scikit-learn nor torch is loaded to score."""
    for kind in OPTIONS:
        fitted(kind).save(tmp_path / kind.__name__)
    program = (
        "import sys, numpy as np, poolish.guards as g\n"
        f"for name in {[kind.__name__ for kind in OPTIONS]}:\n"
        f"    detector = getattr(g, name).load({str(tmp_path)!r} + '/' + name)\n"
        "    assert detector.mask(np.full((1, 3), 40.0)).all()\n"
        "assert not {'sklearn', 'torch', 'scipy'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", program], check=True)


@each
def test_rows_come_in_many_forms(kind: type[Detector]):
    """Columns that are not numbers are left out of a fit; names are remembered."""
    table = pa.table({"x": ROWS[:, 0], "y": ROWS[:, 1], "word": ["a"] * len(ROWS)})
    detector = fitted(kind, table)

    assert detector.columns == ["x", "y"]
    assert detector.mask([{"x": 9.0, "y": 9.0}, {"x": 1.0, "y": 0.0}]).tolist() == [True, False]
    with pytest.raises(SchemaError, match="these names"):
        detector.scores(ROWS[:, :2])
    with pytest.raises(SchemaError, match="'y'"):
        detector.scores({"x": [1.0]})


@each
def test_rows_that_cannot_be_scored_are_outliers(kind: type[Detector]):
    """Missing, infinite and huge numbers: nothing warns, and they are neither learnt from nor let through."""
    rows = np.concatenate([ROWS, [[np.nan, 0, 0], [np.inf, 0, 0]]])
    detector = fitted(kind, rows)

    assert detector.mask(rows)[-2:].all()
    assert np.isfinite(detector.threshold)
    assert detector.mask(np.array([[1e308, -1e308, 1e308]])).all()
    assert detector.mask(np.empty((0, 3))).tolist() == []


@each
def test_what_cannot_be_fitted_is_refused(kind: type[Detector], tmp_path: Path):
    """Before anything changes."""
    detector = kind(**OPTIONS[kind])
    for rows in (np.empty((0, 3)), np.full((5, 2), np.nan), {"word": ["a", "b"]}):
        with pytest.raises(SchemaError):
            detector.fit(rows)
    for act in (lambda: detector.scores(ROWS), lambda: detector.save(tmp_path / "x")):
        with pytest.raises(ConfigError, match="not fitted"):
            act()
    for contamination in (0, 0.5, 2):
        with pytest.raises(ConfigError, match="contamination"):
            kind(contamination=contamination)
    with pytest.raises(SchemaError, match="fitted on rows of 3"):
        fitted(kind).scores(ROWS[:, :2])


@each
def test_constant_columns_do_no_harm(kind: type[Detector]):
    """Their deviation is nothing to divide by."""
    rows = np.column_stack([ROWS, np.full(len(ROWS), 7.0)])

    assert np.isfinite(fitted(kind, rows).scores(rows)).all()


# Files ----------------------------------------------------------------------------------------------------------


@each
def test_damaged_files_are_refused(kind: type[Detector], tmp_path: Path):
    """Cut short, another kind, other shapes: one error, and no array is reached outside of itself.

    The checksum is right where there is one, so that what stands behind it is looked at.
    """
    path = tmp_path / "detector"
    fitted(kind).save(path)
    whole = path.read_bytes()
    (length,) = struct.unpack_from("<Q", whole)
    header = json.loads(whole[8 : 8 + length])

    def with_header(changed: dict[str, Any]) -> bytes:
        text = json.dumps(changed).encode()
        return sealed(struct.pack("<Q", len(text)) + text + whole[8 + length :])

    metadata = header["__metadata__"]
    name = next(key for key in header if key != "__metadata__")
    damages = [b"", whole[:5], whole[:100], whole[:-8], struct.pack("<Q", 2**60) + whole[8:]]
    damages.append(with_header({**header, "__metadata__": {**metadata, "poolish": "something"}}))
    damages.append(with_header({**header, "__metadata__": {**metadata, "settings": "{}"}}))
    damages.append(with_header({key: entry for key, entry in header.items() if key != name}))
    damages.append(with_header({**header, name: {**header[name], "data_offsets": [0, 10**9]}}))
    damages.append(with_header({**header, name: {**header[name], "shape": [-1]}}))
    damages.append(with_header({**header, name: {**header[name], "shape": [2**70]}}))
    damages.append(with_header({**header, name: {**header[name], "dtype": "O"}}))
    for damage in damages:
        path.write_bytes(damage)
        with pytest.raises(CorruptDataError):
            kind.load(path)


@each
def test_one_flipped_bit_anywhere_is_found(kind: type[Detector], tmp_path: Path):
    """In the numbers too, where every bit means something: the checksum is that of the whole file."""
    path = tmp_path / "detector"
    fitted(kind).save(path)
    whole = path.read_bytes()

    for place in np.linspace(0, len(whole) - 1, 300).astype(int).tolist():
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(CorruptDataError, match="detector"):
            kind.load(path)


def test_a_file_without_checksum_is_refused(tmp_path: Path):
    """It may not be what was saved."""
    path = tmp_path / "detector"
    text = json.dumps({"__metadata__": {"poolish": IsolationForestOutliers.kind, "settings": "{}"}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)

    with pytest.raises(CorruptDataError, match=r"detector: it has no checksum .*; save it again"):
        IsolationForestOutliers.load(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path):
    """What is no regular file is an error at once."""
    os.mkfifo(tmp_path / "detector")

    with pytest.raises(CorruptDataError, match="detector: not a regular file"):
        IsolationForestOutliers.load(tmp_path / "detector")


def test_trees_that_lead_nowhere_are_refused(tmp_path: Path):
    """A child before its parent would make a walk that never ends."""
    detector = fitted(IsolationForestOutliers)
    left = detector._arrays["left"].copy()
    left[np.flatnonzero(left >= 0)[3]] = 0
    detector._arrays["left"] = left
    detector.save(tmp_path / "forest")

    with pytest.raises(CorruptDataError, match="lead nowhere"):
        IsolationForestOutliers.load(tmp_path / "forest")


# scikit-learn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_features": 2}, {"max_samples": 64}, {"bootstrap": True}])
def test_forest_scores_are_scikit_learns(options: dict[str, Any]):
    """The same trees give the same scores, on rows near and far."""
    from sklearn.ensemble import IsolationForest

    forest = IsolationForest(n_estimators=30, random_state=1, **options).fit(ROWS)
    detector = IsolationForestOutliers()
    rows = np.concatenate([ROWS, STRANGE])

    scores = detector._score(as_arrays(forest, 3), rows)

    np.testing.assert_allclose(scores, -forest.score_samples(rows), rtol=1e-12)


def test_svm_scores_are_scikit_learns():
    """Support vectors and their weights are all that is needed."""
    from sklearn.svm import OneClassSVM

    detector = fitted(OneClassSVMOutliers)
    scale = scaling(ROWS)
    machine = OneClassSVM(gamma=1 / 3, nu=0.1).fit(standardized(scale, ROWS))
    rows = np.concatenate([ROWS, STRANGE])

    expected = -machine.decision_function(standardized(scale, rows))

    np.testing.assert_allclose(detector.scores(rows), expected, atol=1e-9)


def test_svm_learns_from_a_bounded_number_of_rows():
    """Drawn by the seed."""
    rows = np.random.default_rng(0).standard_normal((3_000, 2))
    few = OneClassSVMOutliers(max_rows=500, seed=1).fit(rows)

    assert len(few._arrays["vectors"]) < 100
    assert few.scores(rows).tolist() == OneClassSVMOutliers(max_rows=500, seed=1).fit(rows).scores(rows).tolist()
