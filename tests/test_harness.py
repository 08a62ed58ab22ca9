"""The benchmark harness counts right: who is better, by how much, in what order, and who was not there."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.harness import Figure, compare, needs, per_call, per_second, play, ratio


def scripted(figures: list[float], log: list[str] | None = None, name: str = ""):
    """A measure that returns the figures one by one, after one that is thrown away."""
    waiting = iter([-1.0, *figures])

    def measure() -> float:
        if log is not None:
            log.append(name)
        return next(waiting)

    return measure


def ticking(*seconds: float):
    """A clock that shows these times, one at each look."""
    return iter(seconds).__next__


@pytest.mark.parametrize(
    ("unit", "poolish", "peer", "expected"),
    [
        ("ns", 10, 30, 3.0),
        ("us", 30, 10, 1 / 3),
        ("ms/row", 10, 30, 3.0),
        ("bytes", 10, 30, 3.0),
        ("MiB", 10, 30, 3.0),
        ("rows/s", 30, 10, 3.0),
        ("batches/s", 10, 30, 1 / 3),
        ("MiB/s", 30, 10, 3.0),
    ],
)
def test_ratio_above_one_means_poolish_is_better(unit: str, poolish: float, peer: float, expected: float):
    """Less time, fewer bytes and more rows a second are all better."""
    assert ratio(unit, poolish, peer) == pytest.approx(expected)


def test_unknown_unit_is_refused_before_anything_is_measured():
    """Nobody knows which way furlongs point."""
    log: list[str] = []

    with pytest.raises(ValueError, match="furlongs"):
        compare("b", "furlongs", scripted([1], log, "poolish"))

    assert log == []


def test_figures_are_medians_of_the_counted_rounds():
    """One slow round changes nothing, and the warm-up is not counted."""
    lines: list[str] = []

    compare("b", "us", scripted([1, 2, 900]), {"deque": scripted([8, 700, 6])}, rounds=3, report=lines.append)

    assert [json.loads(line) for line in lines] == [
        {"bench": "b", "unit": "us", "poolish": 2, "peer": 8, "peer_name": "deque", "ratio": 4.0, "rounds": 3}
    ]


def test_players_take_turns_and_turns_rotate():
    """Every round has everybody in it, and nobody always goes first."""
    log: list[str] = []

    play({name: scripted([0] * 3, log, name) for name in ("poolish", "a", "b")}, 3)

    assert ["".join(name[0] for name in log[i : i + 3]) for i in range(0, 12, 3)] == ["pab", "abp", "bpa", "pab"]


def test_missing_peer_is_reported_in_its_line():
    """A peer that is not installed has a line that says so."""
    lines: list[str] = []
    peers = {"lance": needs("no_such_library", lambda _: scripted([])), "deque": scripted([6])}

    compare("b", "us", scripted([3]), peers, rounds=1, report=lines.append)

    first, second = map(json.loads, lines)
    assert (first["peer_name"], first["peer"], first["ratio"], first["poolish"]) == ("lance", None, None, 3)
    assert "no_such_library" in first["note"]
    assert (second["peer_name"], second["ratio"]) == ("deque", 2.0)


def test_failing_peer_is_reported_and_the_others_go_on():
    """A peer that breaks half way does not take the benchmark with it."""

    def broken() -> float:
        raise RuntimeError("out of luck")

    lance, deque = compare("b", "us", scripted([3]), {"lance": broken, "deque": scripted([6])}, rounds=1, report=str)

    assert lance == Figure("b", "us", 3, None, "lance", None, 1, "failed: RuntimeError: out of luck")
    assert deque.ratio == 2.0


def test_failing_poolish_is_a_failure():
    """Our own errors are not notes."""
    with pytest.raises(StopIteration):
        compare("b", "us", scripted([]), {"deque": scripted([6])}, rounds=1, report=str)


def test_figure_without_peers_has_one_line():
    """What nobody else does is measured too."""
    assert compare("b", "us", scripted([3]), rounds=1, report=str) == [Figure("b", "us", 3, None, None, None, 1)]


def test_measures_do_the_arithmetic():
    """Time is shared by the calls, rates count all items."""
    assert per_call(lambda: None, unit="us", calls=4, clock=ticking(10.0, 12.0))() == pytest.approx(500_000)
    assert per_second(lambda: None, 100, calls=4, clock=ticking(10.0, 12.0))() == pytest.approx(200)


def test_preparation_is_fresh_and_outside_the_time():
    """Each round gets its own object, and the clock starts when it is there."""
    log: list[str] = []
    times = iter([1.0, 2.0, 3.0, 4.0])

    def clock() -> float:
        log.append("clock")
        return next(times)

    measure = per_call(
        lambda made: made.append("call"), unit="s", calls=2, prepare=lambda: log.append("prepare") or log, clock=clock
    )
    measure()
    measure()

    assert log == ["prepare", "clock", "call", "call", "clock"] * 2


def test_results_page_shows_every_line():
    """Missing peers, broken benchmarks and cells with bars in them included."""
    full = Figure("a|b", "rows/s", 6123456.0, 2.0, "hf", 3e6, 7)
    gap = Figure("c", "us", 1.5, None, "x", None, 7, "not installed")
    rows = [run.row_of(json.loads(figure.to_json())) for figure in (full, gap)]

    page = run.results(rows, ["rows"], date(2030, 1, 2), "a machine")

    assert "on 2030-01-02: a machine." in page
    assert "| a\\|b | rows/s | 6,123,000 | hf | 2 | 3,000,000 | 7 | - |" in page
    assert "| c | us | 1.5 | x | - | - | 7 | not installed |" in page
    assert "`bench_rows.py` failed" in page


def test_some_benchmarks_replace_their_rows_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The rows of the others stay, in the order of their names."""
    monkeypatch.setattr(run, "RESULTS", tmp_path / "RESULTS.md")
    old = [run.row_of(json.loads(Figure(name, "us", 1.0, None, "x", None, 1).to_json())) for name in ("a.x", "b.y")]
    run.RESULTS.write_text(run.results(old, [], date(2030, 1, 2), "a machine"))
    new = json.loads(Figure("b.z", "us", 2.0, None, "x", None, 1).to_json())
    monkeypatch.setattr(run, "figures_of", lambda name, failed: iter([new]))

    assert run.main(["b"]) == 0

    assert run.kept_rows() == [old[0], run.row_of(new)]


def test_machine_is_described_without_its_name():
    """Results may be published; whose machine it was stays private."""
    import platform

    assert platform.node() not in run.machine()
