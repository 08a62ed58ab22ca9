"""Rows that fit into memory are read at once, others when they are asked for; how that was decided is said."""

from __future__ import annotations

import pytest

from poolish.errors import ConfigError
from poolish.load.views.single import SubsettedDataset
from poolish.testing import same
from tests.load.sources import Rows, row


def test_rows_that_fit_are_read_once(monkeypatch, caplog):
    """All of them, now; bytes, text or a fraction of what is free say what fits."""
    monkeypatch.setattr("poolish.load.memory_cache.free_bytes", lambda: 1_000_000)
    for if_fits in (100_000, "100kb", 0.1):
        rows = Rows(50)
        with caplog.at_level("INFO", "poolish.load"):
            held = rows.materialise(if_fits=if_fits)
        n_reads = len(rows.reads)

        assert same(list(held), [row(n) for n in range(50)])
        assert (len(rows.reads), set(rows.reads)) == (n_reads, set(range(50)))
        assert "Rows is in memory: 50 rows of about" in caplog.text


def test_rows_that_do_not_fit_stay_lazy(monkeypatch, caplog):
    """The dataset itself is returned after a look at a few rows, and the log says why."""
    monkeypatch.setattr("poolish.load.memory_cache.free_bytes", lambda: 10_000)
    rows = Rows(5_000)
    fit = rows.fits(0.5)

    with caplog.at_level("INFO", "poolish.load"):
        assert rows.materialise(if_fits=0.5) is rows
    assert len(rows.reads) <= 64
    assert not fit
    assert (fit.n_rows, fit.allowed) == (5_000, 5_000)
    assert f"Rows stays lazy: {fit}" in caplog.text


def test_rows_larger_than_estimated_stay_lazy(caplog):
    """What was not looked at may be large: the bound holds all the same."""
    rows = SubsettedDataset([b"" if n in range(0, 3200, 100) else bytes(1000) for n in range(3101)], range(3101))
    assert rows.fits("1mb")

    with caplog.at_level("INFO", "poolish.load"):
        assert rows.materialise(if_fits="1mb") is rows
    assert "larger than estimated" in caplog.text


def test_what_may_be_taken_is_checked():
    """A float is a fraction; an empty dataset fits anywhere."""
    with pytest.raises(ConfigError, match=r"if_fits=1.5: a float is a fraction"):
        Rows(3).materialise(if_fits=1.5)
    assert Rows(0).fits(0)
    assert len(Rows(0).materialise("0kb")) == 0
