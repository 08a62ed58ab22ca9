"""How often do guards cry wolf, and how soon do they see one? Draws the plots of docs/guards.md.

    python examples/guards_thresholds.py            # writes docs/guards_*.svg again
    python examples/guards_thresholds.py some/folder --rounds 50

Everything is drawn from one seed, so the files change only if the guards do.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from poolish import html
from poolish.guards import Profile, Suite, psi
from poolish.seeds import generator

ROOT = Path(__file__).resolve().parent.parent
SIZES = (50, 100, 200, 500, 1_000, 2_000)
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


def chart(
    title: str, labels: Sequence[str], series: Mapping[str, Sequence[float]], *, mark: float | None = None
) -> str:
    """Lines from 0 to 1 over places at equal distances, and a mark that should be kept."""
    step = (WIDTH - LEFT - 150) / (len(labels) - 1)
    x = [LEFT + i * step for i in range(len(labels))]
    parts = [_text(LEFT, 16, title, weight="bold")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts += [_line(x[0], x[-1], share, "#8888", "1"), _text(LEFT - 6, _y(share) + 4, f"{share:.0%}", anchor="end")]
    parts += [_text(place, HEIGHT - 16, label, anchor="middle") for place, label in zip(x, labels, strict=True)]
    if mark is not None:
        parts += [_line(x[0], x[-1], mark, "#c0392b", "1"), _text(x[-1] + 8, _y(mark) + 4, f"alpha = {mark:g}")]
    for i, (name, values) in enumerate(series.items()):
        look = {"fill": "none", "stroke": html.ACCENT, "stroke_width": "2", "stroke_dasharray": STROKES[i] or None}
        points = " ".join(f"{place:.1f},{_y(value):.1f}" for place, value in zip(x, values, strict=True))
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
    for name, svg in plots.items():
        (folder / f"guards_{name}.svg").write_text(svg + "\n")
    return {"sizes": SIZES, "fixed": fixed, "ours": ours, "seen": seen, "persist": kept}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs")
    parser.add_argument("--rounds", type=int, default=200, help="how often each window is drawn")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for name, value in main(asked.folder, asked.rounds, asked.seed).items():
        print(name, value)
