"""A recipe from end to end: eight plays become a training set, which is explained, baked, grown and baked again.

    python examples/recipes.py                # in a temporary folder
    python examples/recipes.py somewhere      # in a folder that you can look into afterwards

Three quarters of the longer speeches of tragedies and 250 of comedies are cut into sentences, made lower case and
shuffled. Then a new file arrives, and only that file is baked.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from poolish import DatasetRecipe, col, register_step

TEXT = Path(__file__).parent / "char_diffusion" / "data" / "char_diffusion" / "input.txt"
COMEDIES = ("a_midsummer_night_s_dream", "the_tempest", "twelfth_night_or_what_you_will")

console = Console(width=120, highlight=False)


def write_plays(folder: Path) -> None:
    """One parquet file for each play, one row for each speech: who speaks, and what."""
    for play in re.split(r"\n\n\n(?=[A-Z][^\n]+\n\nby William Shakespeare\n)", TEXT.read_text()):
        title = re.sub(r"\W+", "_", play.split("\n", 1)[0].lower()).strip("_")
        speeches = re.findall(r"^([A-Z][\w ]+)\.\n((?:\S[^\n]*\n)+)", play, re.M)
        rows = [{"speaker": name, "text": said.strip(), "n_words": len(said.split())} for name, said in speeches]
        kind = "comedies" if title in COMEDIES else "tragedies"
        (folder / kind).mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / kind / f"{title}.parquet")


@register_step("sentences")
def sentences(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A speech as its sentences; one row becomes several."""
    parts = re.split(r"(?<=[.!?])\s+", row["text"])
    return [{**row, "text": part, "n_words": len(part.split())} for part in parts]


def recipe_of(plays: Path) -> DatasetRecipe:
    """What the training set is made of."""
    recipe = DatasetRecipe("sentences of speeches", seed=7)
    recipe.add_ingredient("tragedies", str(plays / "tragedies"), where=col.n_words >= 15, take=0.75)
    recipe.add_ingredient("comedies", str(plays / "comedies"), where=col.n_words >= 15, take=250)
    recipe.prepare_step("sentences", sentences)
    recipe.prepare_step("lower", "map", columns={"text": col.text.lower(), "n_chars": col.text.length()})
    recipe.prepare_step("short", "filter", keep=col.n_words.between(4, 40))
    recipe.prepare_step("once", "dedup", columns=["text"])
    return recipe.prepare_step("mixed", "shuffle")


def main(folder: Path) -> None:
    """Explain, bake, look, grow, bake again."""
    plays, cache = folder / "plays", folder / "cache"
    write_plays(plays)
    recipe = recipe_of(plays)

    console.rule("before: what baking would do")
    console.print(str(recipe.explain()))

    console.rule("baked")
    first = recipe.bake(cache=cache)
    console.print(str(first.report))
    (folder / "report.html").write_text(first.report.to_html())

    console.rule("three rows, and where they came from")
    for row in range(3):
        console.print(f"{first.buffer[row]['text']!r}\n  {first.lineage.why(row)}", markup=False)

    console.rule("a new file: only that is baked")
    said = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate. Rough winds do shake buds."
    sonnet = {"speaker": "Poet", "text": said, "n_words": len(said.split())}
    pq.write_table(pa.Table.from_pylist([sonnet]), plays / "tragedies" / "sonnet_18.parquet")
    second = recipe.bake(cache=cache)
    console.print(str(second.report))
    console.print(str(second.diff(first)))

    console.rule("the recipe as a file")
    recipe.save(folder / "recipe.yaml")
    console.print((folder / "recipe.yaml").read_text(), markup=False)
    same = DatasetRecipe.load(folder / "recipe.yaml").fingerprint == recipe.fingerprint
    console.print(f"read again it is {'the same recipe' if same else 'ANOTHER RECIPE'}")


if __name__ == "__main__":
    if sys.argv[1:]:
        Path(sys.argv[1]).mkdir(parents=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
