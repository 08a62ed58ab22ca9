"""Checking a table: 1 M rows, 10 expectations; the target is 10 M values a second, a value being one row of one check.

The peers ask the same ten questions and give the same answer, which rows are good. pyarrow by hand is what a user would
write without a library: it makes masks and counts, but no verdicts and no examples. pandera answers through polars; it
has no cross-column language, so its tenth check is a polars expression.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import Measure, Missing, compare, needs, per_call, per_second
from poolish import DatasetBuffer
from poolish.guards import Suite

ROWS, CHECKS = 1_000_000, 10
KINDS = ["left", "right", "up", "down"]


def table(n_bad: int) -> pa.Table:
    """A million rows of a rollout; some of them bad."""
    rng = np.random.default_rng(0)
    reward, price = rng.normal(size=ROWS), rng.uniform(1, 100, ROWS).astype(np.float32)
    reward[rng.integers(ROWS, size=n_bad)] = np.nan
    start = rng.integers(0, 10**6, ROWS)
    return pa.table(
        {
            "id": np.arange(ROWS),
            "reward": reward,
            "price": price,
            "start": start,
            "end": start + rng.integers(0, 100, ROWS),
            "kind": np.array(KINDS)[rng.integers(4, size=ROWS)],
            "code": [f"row-{i % 5_000:04d}" for i in range(ROWS)],
        }
    )


def suite() -> Suite:
    """Ten expectations."""
    made = Suite("bench").expect("id", nullable=False).expect("id", unique=True).expect("reward", type="float64")
    made.expect("reward", finite=True).expect("price", between=(0, 100)).expect("start", at_least=0)
    made.expect("kind", one_of=KINDS).expect("code", max_length=8).expect("code", matches=r"row-\d{4}")
    return made.expect_rows("end >= start and price > 0")


def by_hand(rows: pa.Table) -> int:
    """The same with pyarrow.compute; how many rows are good."""
    masks = [
        pc.is_valid(rows["id"]),
        pa.chunked_array([pa.array([pc.count_distinct(rows["id"]).as_py() == ROWS] * ROWS)]),
        pa.chunked_array([pa.array([rows.schema.field("reward").type == pa.float64()] * ROWS)]),
        pc.is_finite(rows["reward"]),
        pc.and_(pc.greater_equal(rows["price"], 0), pc.less_equal(rows["price"], 100)),
        pc.greater_equal(rows["start"], 0),
        pc.is_in(rows["kind"], value_set=pa.array(KINDS)),
        pc.less_equal(pc.utf8_length(rows["code"]), 8),
        pc.match_substring_regex(rows["code"], r"\A(?:row-\d{4})\z"),
        pc.and_(pc.greater_equal(rows["end"], rows["start"]), pc.greater(rows["price"], 0)),
    ]
    good = masks[0]
    for mask in masks[1:]:
        good = pc.and_(good, mask)
    return int(pc.sum(good).as_py())


def by_pandera(pandera: ModuleType, rows: pa.Table) -> Measure:
    """The same with pandera on polars."""
    import polars as pl

    check, column = pandera.Check, pandera.Column
    schema = pandera.DataFrameSchema(
        {
            "id": column(pl.Int64, unique=True, nullable=False),
            "reward": column(pl.Float64, check(lambda data: data.lazyframe.select(pl.col(data.key).is_finite()))),
            "price": column(pl.Float32, check.in_range(0, 100)),
            "start": column(pl.Int64, check.ge(0)),
            "end": column(pl.Int64),
            "kind": column(pl.String, check.isin(KINDS)),
            "code": column(pl.String, [check.str_length(max_value=8), check.str_matches(r"^row-\d{4}$")]),
        },
        checks=check(lambda data: data.lazyframe.select((pl.col("end") >= pl.col("start")) & (pl.col("price") > 0))),
    )
    frame = pl.from_arrow(rows)

    def validate() -> None:
        try:
            schema.validate(frame, lazy=True)
        except pandera.errors.SchemaErrors:
            pass

    return per_second(validate, ROWS * CHECKS)


def main() -> None:
    """Good rows, rows of which some are bad, and what a guard adds to an append."""
    asked = suite()
    for what, n_bad in (("all good", 0), ("1,000 bad", 1_000)):
        rows = table(n_bad)
        result, expected = asked.check(rows), by_hand(rows)
        assert int(result.mask.sum()) == expected
        peers: dict[str, Measure | Missing] = {
            "pyarrow by hand": per_second(lambda rows=rows: by_hand(rows), ROWS * CHECKS),
            "pandera": needs("pandera.polars", lambda library, rows=rows: by_pandera(library, rows)),
        }
        compare(
            f"checks.10 expectations of 1 M rows, {what}",
            "values/s",
            per_second(lambda rows=rows: asked.check(rows).mask, ROWS * CHECKS),
            peers,
        )
    part = table(0).slice(0, 10_000)
    guarded, plain = DatasetBuffer(100_000, guard=asked), DatasetBuffer(100_000)
    compare(
        "checks.append of 10,000 rows with a guard",
        "ms",
        per_call(lambda: guarded.append(part), unit="ms", calls=5),
        {"without a guard": per_call(lambda: plain.append(part), unit="ms", calls=5)},
    )


if __name__ == "__main__":
    main()
