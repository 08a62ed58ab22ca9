"""The ledger on disk: ranks in several processes agree on every block through a directory.

    journal/order.json        what the order is of: source, seed, shuffle; and whose it is: the run
    journal/lock              held while a line is written
    journal/epoch-3.jsonl     one line each for a decided block, a run that began, rows that could not be read

A process that needs a block looks for its line; if there is none, it takes the lock, looks again, decides and writes.
So a block is decided once, by the first that needs it. A line carries a checksum and ends the moment it is written:
what a killed process left behind the last whole line is cut off by the next one that writes.

A journal is also the memory of a training run: the audit reads it, and a run that goes on from an older checkpoint
finds the decisions that were made after it, so that it sees the same order again. To another run these decisions are
wrong, so a journal belongs to the run that first iterates over it and refuses every other. A journal of 0.1.0 belongs
to no run yet: the first loader that loaded a state claims it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from poolish.errors import ConfigError, ResumeError
from poolish.files import Lock, read_json, write_json
from poolish.files.checksums import ChecksummedLines
from poolish.load.frozen import FrozenRows
from poolish.load.group import ComparedRows
from poolish.load.ledger import OnEmpty, Run, Skipped, digest
from poolish.load.order import BLOCK_ROWS, Block, GenerationCursors, ObservedBounds, Order

#: 2 since journals name their run.
_VERSION, _READS = 2, (1, 2)

#: Blocks that one rank decides for all with each that it needs, in an epoch that does not grow. One at a time, eight
#: ranks wait for each other's lock and lines more than they read (bench_cuda.py ranks).
N_AHEAD = 15

_LOCK_TIMEOUT_S = 60.0
_KEPT_BLOCKS = 4096


class Journal:
    """Decisions in a directory, for any number of processes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        about: dict[str, Any],
        compared: ComparedRows | None = None,
        *,
        n_ahead: int = 0,
    ) -> None:
        """``n_ahead`` blocks are decided with each one, where growth is not followed."""
        self.path, self._compared, self._n_ahead = Path(path), compared, n_ahead
        self._about = {"format": "poolish journal", "block_rows": BLOCK_ROWS, **about}
        self._epochs: dict[int, _EpochFile] = {}
        self._check()
        self._runs: list[Run] = []
        self._noted = {path.name: ChecksummedLines(path) for path in self._epoch_paths()}
        for lines in self._noted.values():
            lines.skip()

    def _check(self) -> None:
        """The journal is about this order; an empty directory becomes one."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"journal {self.path}: there is a file of that name; give a directory") from None
        if not self._place.exists():
            with self._lock():
                if not self._place.exists():
                    self._write_order(None)
        self._owner()

    def _owner(self) -> str | None:
        """The run that the journal belongs to; an error if it is about another order."""
        found = read_json(self._place)
        if not isinstance(found, dict):
            raise ConfigError(f"{self._place}: not a journal of poolish; give a directory of its own")
        if found.get("format") == "poolish journal" and found.get("version") not in _READS:
            raise ConfigError(f"{self._place}: version {found.get('version')!r}; this poolish reads versions 1 and 2")
        wrong = [name for name, value in self._about.items() if found.get(name) != value]
        if wrong:
            raise ConfigError(
                f"journal {self.path}: it is about {wrong[0]} {found.get(wrong[0])!r}, this loader has "
                f"{self._about[wrong[0]]!r}; give each training run a directory of its own"
            )
        owner: str | None = found.get("run")
        return owner

    def claim(self, run: str, *, is_resumed: bool) -> None:
        """From now on the journal belongs to ``run``; an error if it belongs to another.

        ``is_resumed``: the loader goes on from a state, so it may claim what 0.1.0 wrote without a run.
        """
        if self._owner() == run:
            return
        with self._lock():
            owner = self._owner()
            if owner is None and (is_resumed or not any(self._lines())):
                self._write_order(run)
                return
        if owner is None:
            raise ResumeError(
                f"journal {self.path}: written by poolish 0.1.0, which stored no run; to go on with that run load one "
                "of its states first (load_state_dict), for a new run give a new directory"
            )
        if owner != run:
            raise ResumeError(
                f"journal {self.path}: belongs to run {owner!r}, this is run {run!r}; to go on with it load a state of "
                f"run {owner!r} or pass run={owner!r}, for a new run give a new directory"
            )

    def _write_order(self, run: str | None) -> None:
        owner = {} if run is None else {"run": run}
        write_json(self._place, {**self._about, "version": _VERSION, **owner})

    @property
    def _place(self) -> Path:
        return self.path / "order.json"

    def _lock(self) -> Lock:
        return Lock(self.path / "lock", timeout_s=_LOCK_TIMEOUT_S)

    def decide_block(
        self,
        order: Order,
        number: int,
        before: GenerationCursors,
        frozen: FrozenRows,
        on_empty: OnEmpty,
        session: int = 0,
    ) -> Block | None:
        """Decide, unless another process has."""
        file, mine = self._file(order.epoch), digest(before)
        line = file.block(number)
        if line is None:
            with self._lock():
                line = file.block(number)
                if line is None:
                    block = order.decide(number, before, frozen, is_end=on_empty == "end")
                    if block.is_empty and on_empty == "wait":
                        return None
                    content = [] if self._compared is None else self._compared.beyond(frozen, block.seen.spans)
                    line, n_ahead = _line(number, before, block.seen), min(self._n_ahead, order.n_ahead(block, frozen))
                    file.write(
                        {**line, "content": content} if content else line, *self._ahead(order, block, n_ahead, frozen)
                    )
                    return block._replace(n_ahead=n_ahead)
        if line["before"] != mine:
            raise ResumeError(
                f"journal {file.path}: block {number} was decided in another history than that of this loader's state; "
                "go on from a state of this run, or give a new run a directory of its own"
            )
        seen = ObservedBounds.from_json(line)
        if self._compared is not None:
            self._compared.compare(frozen, seen.spans, line.get("content", []))
        block = order.decide(number, before, frozen, seen)
        n_ahead = min(self._n_ahead, order.n_ahead(block, frozen))
        return block._replace(n_ahead=self._n_alike(file, block, n_ahead))

    def _ahead(self, order: Order, block: Block, n_ahead: int, frozen: FrozenRows) -> Iterator[dict[str, Any]]:
        """The lines of the blocks that follow from a block; the end is left to the rank that comes to it."""
        lasting = block.seen.lasting
        for i in range(n_ahead):
            yield _line(block.number + 1 + i, block.left_behind(i), lasting)
        if n_ahead or order.follow:
            return
        for _ in range(self._n_ahead):  # rows are missing, or there are several parts: each block is looked at
            block = order.decide(block.number + 1, block.after, frozen)
            if block.is_empty:
                return
            yield _line(block.number, block.before, block.seen)

    def _n_alike(self, file: _EpochFile, block: Block, n_ahead: int) -> int:
        """How many of the blocks behind a block are decided, and saw the same."""
        lasting, n_alike = block.seen.lasting.to_json().items(), 0
        while n_alike < n_ahead and (file.block(block.number + n_alike + 1) or {}).items() >= lasting:
            n_alike += 1
        if not n_alike:
            return 0
        # The last of them comes after all others, so it was decided in this history if they were.
        line = file.block(block.number + n_alike) or {}
        return n_alike if line["before"] == digest(block.left_behind(n_alike - 1)) else 0

    def seen(self, epoch: int, number: int) -> ObservedBounds | None:
        """What decided a block."""
        line = self._file(epoch).block(number)
        return None if line is None else ObservedBounds.from_json(line)

    def enter(self, run: Run) -> int:
        """A rank's steps begin or continue here; on disk all of a training run is one session.

        All ranks make the same steps, so a step that two of them begin with belongs to one epoch.
        """
        with self._lock():
            for other in self._newer_runs():
                is_other = (other.step, other.world_size) == (run.step, run.world_size) and other.epoch != run.epoch
                if is_other and other.who != run.who:
                    raise ResumeError(
                        f"journal {self.path}: {run.who} begins epoch {run.epoch} at step {run.step}, {other.who} "
                        f"began epoch {other.epoch} there; all ranks iterate and set epochs alike"
                    )
            self._file(run.epoch).write({"run": run.to_json()})
        return 0

    def _newer_runs(self) -> list[Run]:
        """What ranks have noted since this journal was opened; before, it may have been another attempt."""
        for path in self._epoch_paths():
            lines = self._noted.setdefault(path.name, ChecksummedLines(path))
            self._runs += [Run.from_json(line["run"]) for line in lines.unread() if "run" in line]
        return self._runs

    def leave(self, who: str, epoch: int, session: int) -> None:
        """Forget nothing: a rank that begins the epoch again sees it as it was decided."""

    def skip(self, skipped: Skipped) -> None:
        """Rows could not be read."""
        self._write(skipped.epoch, {"skipped": list(skipped)})

    def notes(self) -> list[Run | Skipped]:
        """Runs and skipped rows of all epochs, in order."""
        found: list[Run | Skipped] = []
        for line in self._lines():
            if "run" in line:
                found.append(Run.from_json(line["run"]))
            elif "skipped" in line:
                found.append(Skipped(*line["skipped"]))
        return found

    def _write(self, epoch: int, line: dict[str, Any]) -> None:
        with self._lock():
            self._file(epoch).write(line)

    def _file(self, epoch: int) -> _EpochFile:
        if epoch not in self._epochs:
            self._epochs[epoch] = _EpochFile(self.path / f"epoch-{epoch}.jsonl")
        return self._epochs[epoch]

    def _lines(self) -> Iterator[dict[str, Any]]:
        for path in self._epoch_paths():
            yield from ChecksummedLines(path).unread()

    def _epoch_paths(self) -> list[Path]:
        return sorted(self.path.glob("epoch-*.jsonl"), key=lambda path: int(path.stem.removeprefix("epoch-")))


def _line(number: int, before: GenerationCursors, seen: ObservedBounds) -> dict[str, Any]:
    return {"block": number, "before": digest(before), **seen.to_json()}


class _EpochFile:
    """The file of one epoch, and the decisions read from it."""

    def __init__(self, path: Path) -> None:
        self.path, self._lines = path, ChecksummedLines(path)
        self.write = self._lines.write
        self._first_kept = 0
        self._blocks: dict[int, dict[str, Any]] = {}

    def block(self, number: int) -> dict[str, Any] | None:
        """The line that decided a block; lines far behind it are forgotten, and read again if anybody asks."""
        if number < self._first_kept:
            self._first_kept = number
            self._lines.rewind()
        if number not in self._blocks:
            for line in self._lines.unread():
                if line.get("block", -1) >= self._first_kept:
                    self._blocks[line["block"]] = line
        if number > self._first_kept + 2 * _KEPT_BLOCKS:
            self._first_kept = number - _KEPT_BLOCKS
            self._blocks = {i: line for i, line in self._blocks.items() if i >= self._first_kept}
        return self._blocks.get(number)
