"""The data of the recipe benchmarks, and the same bake written for other libraries.

Everybody does the same: of the rows from the web with a score above a half, 30 %; of those from books with a score
above 0.2, 100,000; texts in lower case, their length, the score scaled. All end with the rows in memory. Polars and
Arrow choose by a hash of the row's place, as poolish does; Ray and Hugging Face datasets by what they have for it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from poolish import DatasetRecipe, col

N_ROWS, N_FILES, GROUP = 2_000_000, 8, 62_500
SOURCES = np.array(["web", "web", "books", "code"])
N_BOOKS, FRACTION = 100_000, 0.3


# --- the data --------------------------------------------------------------------------------------------------------


def data(n_rows: int = N_ROWS) -> Path:
    """A directory of parquet files with these rows, in the system's temporary directory; written once."""
    folder = Path(tempfile.gettempdir()) / f"poolish-bench-recipes-{n_rows}"
    done = folder / "complete"
    if not done.exists():
        folder.mkdir(exist_ok=True)
        for i in range(N_FILES):
            table = rows_of(n_rows // N_FILES, seed=i)
            pq.write_table(table, folder / f"part-{i:02}.parquet", row_group_size=GROUP)
        done.touch()
    return folder


def rows_of(n_rows: int, seed: int) -> pa.Table:
    """Rows of (text of 80 to 240 characters, label, score, source), no two alike."""
    rng = np.random.default_rng([7, seed])
    soup = text_soup()
    lengths = rng.integers(80, 241, n_rows)
    ends = np.cumsum(lengths)
    starts = rng.integers(0, len(soup) - 256, n_rows)
    places = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    texts = pa.StringArray.from_buffers(n_rows, pa.py_buffer(offsets), pa.py_buffer(soup[places]))
    return pa.table(
        {
            "text": texts,
            "label": rng.integers(0, 10, n_rows),
            "score": rng.random(n_rows),
            "source": pa.DictionaryArray.from_arrays(
                pa.array(rng.integers(0, len(SOURCES), n_rows, np.int32)), pa.array(SOURCES)
            ).dictionary_decode(),
        }
    )


def text_soup(n_words: int = 1_000_000) -> np.ndarray:
    """Words of a made-up language, as often as words are used (Zipf), some of them with a capital."""
    rng = np.random.default_rng(7)
    letters = rng.choice(list("etaoinshrdlucmfwypvbgkqjxz"), (5_000, 9), p=_letter_shares())
    words = ["".join(row[: rng.integers(2, 10)]) for row in letters]
    words = [word.capitalize() if i % 7 == 0 else word for i, word in enumerate(words)]
    chosen = np.minimum(rng.zipf(1.3, n_words) - 1, len(words) - 1)
    return np.frombuffer(" ".join(words[i] for i in chosen).encode(), np.uint8)


def _letter_shares() -> np.ndarray:
    shares = 1 / np.arange(3, 29)
    shares /= shares.sum()
    return shares


# --- poolish ---------------------------------------------------------------------------------------------------------


def recipe_of(folder: Path, *, seed: int = 7) -> DatasetRecipe:
    """What all of them do, as a recipe."""
    files = str(folder / "*.parquet")
    recipe = DatasetRecipe("bench", seed=seed)
    recipe.add_ingredient("web", files, where=(col.source == "web") & (col.score > 0.5), take=FRACTION)
    recipe.add_ingredient("books", files, where=(col.source == "books") & (col.score > 0.2), take=N_BOOKS)
    columns = {"text": col.text.lower(), "length": col.text.length(), "score": col.score * 2 - 1}
    recipe.prepare_step("scaled", "map", columns=columns)
    return recipe


def expected(n_rows: int) -> tuple[int, int]:
    """The least and the most rows that such a bake may have."""
    n_web = n_rows / 2 * 0.5 * FRACTION
    return int(0.97 * n_web) + N_BOOKS, int(1.03 * n_web) + N_BOOKS


def check(n_got: int, n_rows: int = N_ROWS) -> None:
    """Refuse a figure of anybody who did something else."""
    low, high = expected(n_rows)
    if not low <= n_got <= high:
        raise AssertionError(f"{n_got:,} rows baked, {low:,} to {high:,} expected")


# --- peers -----------------------------------------------------------------------------------------------------------


def polars(folder: Path, pl: Any) -> Callable[[], None]:
    """Lazy scans, collected together, so that its optimiser may share work."""

    def bake() -> None:
        rows = pl.scan_parquet(folder / "*.parquet", row_index_name="i")
        hashed = pl.col("i").hash(7)
        web = rows.filter((pl.col("source") == "web") & (pl.col("score") > 0.5))
        web = web.filter(hashed < int(FRACTION * 2**64)).drop("i")
        books = rows.filter((pl.col("source") == "books") & (pl.col("score") > 0.2))
        books = books.with_columns(hash=hashed).bottom_k(N_BOOKS, by="hash").drop("i", "hash")
        check(len(pl.concat(pl.collect_all([_mapped(web, pl), _mapped(books, pl)]))))

    return bake


def polars_sample(folder: Path, pl: Any) -> Callable[[], None]:
    """The same with polars' own sample, which is not stable when rows are added."""

    def bake() -> None:
        rows = pl.scan_parquet(folder / "*.parquet")
        web = rows.filter((pl.col("source") == "web") & (pl.col("score") > 0.5))
        books = rows.filter((pl.col("source") == "books") & (pl.col("score") > 0.2))
        both = pl.collect_all([web, books])
        chosen = [both[0].sample(fraction=FRACTION, seed=7), both[1].sample(N_BOOKS, seed=7)]
        check(len(pl.concat([_mapped(frame, pl) for frame in chosen])))

    return bake


def _mapped(frame: Any, pl: Any) -> Any:
    text = pl.col("text")
    return frame.with_columns(text.str.to_lowercase(), text.str.len_chars().alias("length"), pl.col("score") * 2 - 1)


def arrow_by_hand(folder: Path) -> Callable[[], None]:
    """What one would write with pyarrow: one scan for both, fragment by fragment."""

    def bake() -> None:
        files = ds.dataset(folder, format="parquet", exclude_invalid_files=True)
        is_web = (pc.field("source") == "web") & (pc.field("score") > 0.5)
        is_book = (pc.field("source") == "books") & (pc.field("score") > 0.2)
        place, web, books, book_hashes = 0, [], [], []
        for batch in files.scanner(filter=is_web | is_book, batch_size=65_536).to_batches():
            hashes = hashes_of(place, batch.num_rows)
            place += batch.num_rows
            from_web = pc.equal(batch["source"], "web").to_numpy(zero_copy_only=False)
            web.append(batch.filter(pa.array(from_web & (hashes < np.uint64(int(FRACTION * 2**64))))))
            books.append(batch.filter(pa.array(~from_web)))
            book_hashes.append(hashes[~from_web])
        hashes = np.concatenate(book_hashes)
        border = np.partition(hashes, N_BOOKS)[N_BOOKS]
        chosen = pa.Table.from_batches(books).filter(pa.array(hashes < border))
        table = pa.concat_tables([pa.Table.from_batches(web), chosen])
        check(arrow_mapped(table).combine_chunks().num_rows)

    return bake


def hashes_of(first: int, n_rows: int) -> np.ndarray:
    """Hashes of consecutive row numbers, by the mixer that poolish uses too."""
    words = np.arange(first, first + n_rows, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def arrow_mapped(table: Any) -> Any:
    """The mapping, of a table or a batch."""
    text, score = table["text"], table["score"]
    scaled = pc.subtract(pc.multiply(score, 2), 1)
    made = table.set_column(0, "text", pc.utf8_lower(text)).set_column(2, "score", scaled)
    return made.append_column("length", pc.cast(pc.utf8_length(text), pa.int64()))


def hf_datasets(folder: Path, datasets: Any) -> Callable[[], None]:
    """Filter and map over batches of Python lists, as its guide writes it; parquet becomes its own files each time."""
    return _hf_from_parquet(_hf_lists, folder, datasets)


def hf_datasets_arrow(folder: Path, datasets: Any) -> Callable[[], None]:
    """The same over Arrow batches, its fastest way."""
    return _hf_from_parquet(_hf_arrow, folder, datasets)


def hf_datasets_converted(folder: Path, datasets: Any) -> Callable[[], None]:
    """As its guide writes it, without the conversion, which was done before."""
    rows = _hf_rows(folder, datasets)
    return lambda: _hf_lists(rows, datasets)


def hf_datasets_arrow_converted(folder: Path, datasets: Any) -> Callable[[], None]:
    """Its fastest way, without the conversion."""
    rows = _hf_rows(folder, datasets)
    return lambda: _hf_arrow(rows, datasets)


def _hf_from_parquet(bake: Callable[[Any, Any], None], folder: Path, datasets: Any) -> Callable[[], None]:
    def bake_all() -> None:
        with tempfile.TemporaryDirectory() as cache:
            bake(_hf_rows(folder, datasets, cache), datasets)

    return bake_all


def _hf_arrow(dataset: Any, datasets: Any) -> None:
    rows = dataset.with_format("arrow")

    def kept(source: str, border: float, batch: Any) -> list[bool]:
        found = pc.and_(pc.equal(batch["source"], source), pc.greater(batch["score"], border))
        answers: list[bool] = found.to_pylist()
        return answers

    _hf_bake(rows, kept, arrow_mapped, datasets)


def _hf_lists(rows: Any, datasets: Any) -> None:
    def kept(name: str, border: float, batch: Any) -> list[bool]:
        pairs = zip(batch["source"], batch["score"], strict=True)
        return [source == name and score > border for source, score in pairs]

    def mapped(batch: Any) -> dict[str, Any]:
        texts = batch["text"]
        scores = [score * 2 - 1 for score in batch["score"]]
        return {"text": [text.lower() for text in texts], "length": [len(text) for text in texts], "score": scores}

    _hf_bake(rows, kept, mapped, datasets)


def _hf_rows(folder: Path, datasets: Any, cache: str | None = None) -> Any:
    datasets.disable_progress_bars()
    files = sorted(map(str, folder.glob("*.parquet")))
    return datasets.Dataset.from_parquet(files, cache_dir=cache or str(folder / "hf"))


def _hf_bake(rows: Any, kept: Callable[..., list[bool]], mapped: Callable[[Any], Any], datasets: Any) -> None:
    web = rows.filter(partial(kept, "web", 0.5), batched=True, load_from_cache_file=False)
    books = rows.filter(partial(kept, "books", 0.2), batched=True, load_from_cache_file=False)
    web = web.shuffle(seed=7).select(range(round(len(web) * FRACTION)))
    books = books.shuffle(seed=7).select(range(N_BOOKS))
    both = datasets.concatenate_datasets([web, books])
    done = both.map(mapped, batched=True, load_from_cache_file=False)
    check(len(done))
    for dataset in (web, books, done):
        dataset.cleanup_cache_files()


def ray_data(folder: Path, ray: Any) -> Callable[[], None]:
    """Ray Data on all cores; starting Ray is not counted."""
    import logging

    import ray.data as rd

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, configure_logging=True)
    rd.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)

    def bake() -> None:
        files = sorted(map(str, folder.glob("*.parquet")))
        web = rd.read_parquet(files).filter(expr="source == 'web' and score > 0.5").random_sample(FRACTION, seed=7)
        books = rd.read_parquet(files).filter(expr="source == 'books' and score > 0.2")
        books = books.randomize_block_order(seed=7).limit(N_BOOKS)
        done = web.union(books).map_batches(arrow_mapped, batch_format="pyarrow").materialize()
        tables = ray.get(done.to_arrow_refs())
        check(sum(table.num_rows for table in tables))

    return bake
