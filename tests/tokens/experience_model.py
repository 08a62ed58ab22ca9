"""A recording as a plain list of steps, and what plain loops read from it: the specification of every read.

A step is a dict of the values that were recorded, with two more: where its episode ends, and whether a break follows.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from poolish import StreamStore

FIELDS = {
    "obs": {"x": ("float32", (2,)), "goal": "float32"},
    "action": "int64",
    "reward": "float64",
    "value": "float64",
    "terminated": "bool",
    "truncated": "bool",
    "note": ("int16", (None,)),
    "final_obs": {"x": ("float32", (2,)), "goal": "float32"},
    "final_value": "float64",
}
#: What only the last step of an episode has.
FINAL = ("final_obs", "final_value")

Plain = list[dict[str, Any]]

#: For each episode its length, and how it ends: terminated, truncated, both, or with a break or the stream (x).
episodes = st.lists(st.tuples(st.integers(1, 6), st.sampled_from("ttuubx")), min_size=1, max_size=7)


def plain_steps(drawn: list[tuple[int, str]]) -> Plain:
    """The steps of some episodes, each with numbers of its own."""
    steps: Plain = []
    for length, how in drawn:
        for t in range(length):
            i, is_last = len(steps), t == length - 1
            step = {
                "obs": {"x": np.array([i, -i], np.float32), "goal": float(i % 3)},
                "action": i % 4,
                "reward": (i * 7 % 5) / 2,
                "value": (i * 3 % 7) / 4,
                "terminated": is_last and how in "tb",
                "truncated": is_last and how in "ub",
                "note": list(range(i % 3)),
                "breaks": is_last and how == "x",
                "begin": i - t,
                "end": i - t + length,
            }
            if is_last and how != "x":
                step["final_obs"] = {"x": np.array([i + 0.5, -i], np.float32), "goal": float(i % 5)}
                step["final_value"] = (i % 4) / 3
            steps.append(step)
    return steps


class Recorded:
    """A stream on disk with these steps, numbered 0, 3, 6, ...; opened again wherever one breaks."""

    def __init__(self, steps: Plain) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name, "stream")
        self.store = StreamStore(path, fields=FIELDS)
        for i, step in enumerate(steps):
            values = {name: value for name, value in step.items() if name not in ("breaks", "begin", "end")}
            self.store.append(3 * i, values)
            if step["breaks"] and i + 1 < len(steps):
                self.store.close()
                self.store = StreamStore(path)

    def __enter__(self) -> StreamStore:
        return self.store

    def __exit__(self, *error: object) -> None:
        self.store.close()
        self._folder.cleanup()


def is_end(step: dict[str, Any]) -> bool:
    """Whether a step ended its episode itself."""
    return bool(step["terminated"] or step["truncated"])


def has_successor(steps: Plain, i: int) -> bool:
    """Whether what was seen behind a step is known."""
    return is_end(steps[i]) or i + 1 < steps[i]["end"]


def seen_behind(steps: Plain, i: int) -> dict[str, Any]:
    """What was seen behind a step."""
    return steps[i]["final_obs"] if is_end(steps[i]) else steps[i + 1]["obs"]


def plain_transition(steps: Plain, i: int, n_step: int, gamma: float) -> dict[str, Any]:
    """One transition, by a loop over its steps."""
    total, j = 0.0, i
    for k in range(n_step):
        total += gamma**k * steps[j]["reward"]
        if is_end(steps[j]) or k == n_step - 1 or not has_successor(steps, j + 1):
            break
        j += 1
    used = j - i + 1
    return {
        "obs": steps[i]["obs"],
        "action": steps[i]["action"],
        "reward": total,
        "next_obs": seen_behind(steps, j),
        "terminated": steps[j]["terminated"],
        "truncated": steps[j]["truncated"],
        "discount": 0.0 if steps[j]["terminated"] else gamma**used,
        "last": j,
    }


def plain_return(steps: Plain, i: int, gamma: float) -> float:
    """The discounted rewards to the end of the episode."""
    return sum(gamma ** (j - i) * steps[j]["reward"] for j in range(i, steps[i]["end"]))


def plain_advantage(steps: Plain, i: int, gamma: float, lam: float) -> float | None:
    """The sum of the discounted errors of the values; None where the value behind the step is not known."""
    if not has_successor(steps, i):
        return None
    found, weight = 0.0, 1.0
    for j in range(i, steps[i]["end"]):
        if not has_successor(steps, j):
            break
        step = steps[j]
        behind = 0.0 if step["terminated"] else step["final_value"] if step["truncated"] else steps[j + 1]["value"]
        found += weight * (step["reward"] + gamma * behind - step["value"])
        weight *= gamma * lam
    return found
