"""How often do guards cry wolf, and how soon do they see one? Draws the plots of docs/guards.md.

    python examples/guards_thresholds.py            # writes docs/guards_*.svg again
    python examples/guards_thresholds.py some/folder --rounds 50

Everything is drawn from one seed, so the files change only if the guards do. The fitted detectors need scikit-learn and
torch: pip install "poolish[guards,torch]".
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from poolish import html
from poolish.guards import Profile, Suite, psi
from poolish.seeds import generator

ROOT = Path(__file__).resolve().parent.parent
SIZES = (50, 100, 200, 500, 1_000, 2_000)
DETECTORS = ("one_class_svm", "autoencoder", "isolation_forest")
DISTANCES = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0)
REFERENCES = (50, 100, 300, 1_000)
Pairs = dict[str, np.ndarray]
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 260, 56, 40, 30
STROKES = ("", "6 4", "2 3", "10 3 2 3")


def reference(rng: np.random.Generator) -> Profile:
    """What 10,000 good rows look like."""
    return Profile.of({"x": rng.normal(size=10_000)})


def alarms(shift: float, rounds: int, seed: int) -> tuple[list[float], list[float]]:
    """By window size: how often ``psi > 0.1`` raises an alarm, and how often our threshold does."""
    rng = generator(seed, "guards", round(shift * 100))
    fixed, ours = [], []
    for n in SIZES:
        found = [psi(reference(rng)["x"], rng.normal(shift, 1, n)) for _ in range(rounds)]
        fixed.append(float(np.mean([each.value > 0.1 for each in found])))
        ours.append(float(np.mean([each.verdict == "drift" for each in found])))
    return fixed, ours


def lasting(persist: int, rounds: int, seed: int) -> tuple[float, float]:
    """Of 100 windows of good rows how many act; and after a shift of 0.3, how many windows pass before one does."""
    rng = generator(seed, "guards", "persist", persist)
    suite = Suite().drift(["x"], severity="error").on(error="skip", persist=persist)
    n_false, delays = 0, []
    for _ in range(max(1, rounds // 10)):
        guard = suite.guard(reference(rng), window=500)
        n_false += sum(guard({"x": rng.normal(size=500)}).action == "skip" for _ in range(100))
        guard = suite.guard(reference(rng), window=500)
        acts = (guard({"x": rng.normal(0.3, 1, 500)}).action == "skip" for _ in range(50))
        delays.append(1 + next((i for i, did in enumerate(acts) if did), 50))
    return n_false / len(delays), float(np.mean(delays))


def pairs(rng: np.random.Generator, n: int) -> Pairs:
    """Good rows: y follows x, up to noise of 0.2."""
    x = rng.normal(size=n)
    return {"x": x, "y": x + rng.normal(0, 0.2, n)}


def far(rows: Pairs, distance: float) -> Pairs:
    """Each row moved along the line that good rows lie on: a larger value, with the y that belongs to it."""
    return {name: values + distance for name, values in rows.items()}


def broken(rows: Pairs, distance: float) -> Pairs:
    """Each row moved away from that line: both values are usual, and do not belong together."""
    return {"x": rows["x"] - distance / 2, "y": rows["y"] + distance / 2}


def fitted(method: str, reference: Pairs, seed: int) -> Suite:
    """A suite that flags what this detector does not know from the reference; one row in a hundred of it."""
    return Suite().outliers(columns=["x", "y"], method=method, seed=seed, severity="error").fit(reference)


def flagged(suite: Suite, rows: Pairs) -> float:
    """The share of rows that a suite calls bad."""
    return float(1 - suite.check(rows).mask.mean())


def found(move: Callable[[Pairs, float], Pairs], suites: Mapping[str, Suite], seed: int) -> dict[str, list[float]]:
    """By how far rows are moved: the share of them that each detector flags."""
    rows = pairs(generator(seed, "guards", "moved"), 1_000)
    return {name: [flagged(suite, move(rows, distance)) for distance in DISTANCES] for name, suite in suites.items()}


def lost(rounds: int, seed: int) -> dict[str, list[float]]:
    """By rows in the reference: the share of other good rows that each detector flags."""
    rng = generator(seed, "guards", "lost")
    rows = pairs(rng, 2_000)
    return {
        method: [
            float(np.mean([flagged(fitted(method, pairs(rng, n), seed), rows) for _ in range(max(1, rounds // 20))]))
            for n in REFERENCES
        ]
        for method in DETECTORS
    }


def chart(
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    mark: float | None = None,
    named: str = "alpha",
    top: float = 1.0,
) -> str:
    """Lines from 0 to ``top`` over places at equal distances, and a mark that should be kept."""
    legend = max(150, 60 + 6.5 * max(map(len, series)))
    step = (WIDTH - LEFT - legend) / (len(labels) - 1)
    x = [LEFT + i * step for i in range(len(labels))]
    parts = [_text(LEFT, 16, title, weight="bold")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        label = f"{100 * share * top:g}%"
        parts += [_line(x[0], x[-1], share, "#8888", "1"), _text(LEFT - 6, _y(share) + 4, label, anchor="end")]
    parts += [_text(place, HEIGHT - 16, label, anchor="middle") for place, label in zip(x, labels, strict=True)]
    if mark is not None:
        y = mark / top
        parts += [_line(x[0], x[-1], y, "#c0392b", "1"), _text(x[-1] + 8, _y(y) + 4, f"{named} = {mark:g}")]
    for i, (name, values) in enumerate(series.items()):
        look = {"fill": "none", "stroke": html.ACCENT, "stroke_width": "2", "stroke_dasharray": STROKES[i] or None}
        points = " ".join(f"{place:.1f},{_y(value / top):.1f}" for place, value in zip(x, values, strict=True))
        beside, y = x[-1] + 12, TOP + 18 * i + 20
        parts += [html.element("polyline", points=points, **look), _text(beside + 34, y + 4, name)]
        parts.append(html.element("polyline", points=f"{beside:.1f},{y} {beside + 28:.1f},{y}", **look))
    return str(
        html.element(
            "svg",
            html.element("title", title),
            html.element("rect", width=WIDTH, height=HEIGHT, fill="#fff"),
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            width=WIDTH,
            height=HEIGHT,
            role="img",
        )
    )


def _y(share: float) -> float:
    return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def _line(left: float, right: float, share: float, stroke: str, width: str) -> html.Html:
    y = f"{_y(share):.1f}"
    return html.element("line", x1=f"{left:.1f}", x2=f"{right:.1f}", y1=y, y2=y, stroke=stroke, stroke_width=width)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> html.Html:
    style = f"font:{weight} 12px system-ui,sans-serif"
    return html.element("text", text, x=f"{x:.1f}", y=f"{y:.1f}", fill="#222", text_anchor=anchor, style=style)


def main(folder: Path, rounds: int, seed: int) -> dict[str, object]:
    """Draw all plots; what is in them."""
    sizes = [f"{n:,}" for n in SIZES]
    fixed, ours = alarms(0.0, rounds, seed)
    seen = {f"shift {shift:g} sd": alarms(shift, rounds, seed)[1] for shift in (0.5, 0.3, 0.2, 0.1)}
    kept = {k: lasting(k, rounds, seed) for k in (1, 2, 3)}
    suites = {method: fitted(method, pairs(generator(seed, "guards", "pairs"), 1_000), seed) for method in DETECTORS}
    outside = {"far": found(far, suites, seed), "broken": found(broken, suites, seed), "lost": lost(rounds, seed)}
    distances = [f"{distance:g}" for distance in DISTANCES]
    plots = {
        "false_alarms": chart(
            "Windows without drift that raise an alarm, by rows in the window",
            sizes,
            {"psi > 0.1": fixed, "our threshold": ours},
            mark=0.05,
        ),
        "detection": chart("Windows with drift that raise an alarm, by rows in the window", sizes, seen),
        "persist": str(
            html.bar_chart(
                [f"{what}, persist={k}" for k in kept for what in ("false acts", "delay")],
                [value for pair in kept.values() for value in pair],
                width=560,
                title="Acts in 100 windows of 500 rows without drift, and windows until a shift of 0.3 is acted on",
            )
        ),
    }
    plots |= {
        "far": chart("Rows found whose values are too large, by how much", distances, outside["far"]),
        "broken": chart("Rows found whose values do not belong together, by distance", distances, outside["broken"]),
        "lost": chart(
            "Good rows called outliers, by rows in the reference",
            [f"{n:,}" for n in REFERENCES],
            outside["lost"],
            mark=0.01,
            named="contamination",
            top=0.1,
        ),
    }
    for name, svg in plots.items():
        (folder / f"guards_{name}.svg").write_text(svg + "\n")
    return {"sizes": SIZES, "fixed": fixed, "ours": ours, "seen": seen, "persist": kept, **outside}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs")
    parser.add_argument("--rounds", type=int, default=200, help="how often each window is drawn")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for name, value in main(asked.folder, asked.rounds, asked.seed).items():
        print(name, value)
