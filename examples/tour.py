"""A tour of poolish, from nothing to trained rows: what `make run` shows.

A small network learns to read handwritten digits while its data changes: new pictures arrive every round, noisier each
time, half of the old ones is kept, hard ones are drawn more often, and in the end everything is saved and found again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

from poolish import DatasetBuffer, show_versions
from poolish.errors import SchemaError

console = Console()


def new_samples(n: int, noise: float, rng: np.random.Generator) -> list[dict[str, object]]:
    """``n`` of the 1,797 digits that scikit-learn ships, with noise on them, as samples."""
    digits = load_digits()
    chosen = rng.integers(len(digits.images), size=n)
    pictures = digits.images[chosen] / 16 + noise * rng.normal(size=(n, 8, 8))
    return [
        {"picture": picture.astype(np.float32), "label": int(label), "priority": 1.0, "source": f"noise {noise:.1f}"}
        for picture, label in zip(pictures, digits.target[chosen], strict=True)
    ]


def train(model: torch.nn.Module, buffer: DatasetBuffer, rng: np.random.Generator) -> float:
    """One epoch over a snapshot; how wrong the model was on each row becomes the row's priority."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rows = buffer.snapshot()
    data = rows.to_torch(columns=["picture", "label"])
    losses = torch.zeros(len(rows))
    for batch in torch.from_numpy(rng.permutation(len(rows))).split(64):
        loss = torch.nn.functional.cross_entropy(model(data["picture"][batch]), data["label"][batch], reduction="none")
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        losses[batch] = loss.detach()
    buffer.update(rows.ids, {"priority": losses.double().numpy()})
    return float(losses.mean())


def main() -> None:
    """The tour."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    layers = [torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    model = torch.nn.Sequential(*layers)

    console.rule("[bold]poolish: datasets that change while you train")
    buffer = DatasetBuffer(max_size=6_000, drop_strategy="oldest", seed=0)
    rounds = Table("round", "new rows", "kept", "rows now", "loss", title="new data each round, half of the old kept")
    for number in track(range(8), description="training", console=console, transient=True):
        fresh = new_samples(2_000, noise=0.05 * number, rng=rng)
        n_before = len(buffer)
        buffer.append(fresh, retain_prior=0.5, retain_prior_by="random")
        loss = train(model, buffer, rng)
        kept = f"{len(buffer) - len(fresh):,} of {n_before:,}"
        rounds.add_row(str(number), f"{len(fresh):,}", kept, f"{len(buffer):,}", f"{loss:.3f}")
    console.print(rounds)

    hard = buffer.sample(5, weights="priority")
    drawn = zip(hard["label"].to_pylist(), hard["source"].to_pylist(), strict=True)
    console.print("five rows drawn by priority:", ", ".join(f"{label} ({source})" for label, source in drawn))

    bad = {"picture": np.zeros((8, 9), np.float32), "label": 1, "priority": 1.0, "source": "elsewhere"}
    try:
        buffer.append([*new_samples(3, 0.2, rng), bad])
    except SchemaError as error:
        console.print(f"[yellow]a bad sample is refused, and nothing came in:[/] {error}", highlight=False)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.poolish"
        buffer.save(path)
        again = DatasetBuffer.load(path)
        size = path.stat().st_size / 1e6
        console.print(f"saved {size:.1f} MB, loaded {len(again):,} rows with ids {again.ids[0]} to {again.ids[-1]}")

    console.print("to Hugging Face:", buffer.to_hf_dataset().features)
    console.print(buffer)
    show_versions()


if __name__ == "__main__":
    main()
