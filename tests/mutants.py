"""Mutants of the lines that guard the file formats: remove a guard, and its test must fail.

docs/formats/*.md lists what is never true, each with an id. ``MUTANTS`` links every id to the source that prevents it
and to the test that claims it. ``make mutants`` copies the project to a temporary directory, sees the tests pass there,
and then, for one guard after the other, replaces it and sees its test fail. A mutant that survives is an invariant that
nothing guards: write the missing test first. ``tests/test_mutants.py`` keeps the table true to docs and source.

    python -m tests.mutants          all of them, in a few minutes
    python -m tests.mutants S4 S5    those of two invariants
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: A mutant that makes its test hang is detected too.
TIMEOUT_S = 300


@dataclass(frozen=True)
class Mutant:
    """One way to break an invariant: ``guard``, which is in ``file`` once, becomes ``broken``; then ``test`` fails."""

    invariant: str
    file: str
    guard: str
    broken: str
    test: str

    @property
    def path(self) -> str:
        """The file below the project's root."""
        return f"src/poolish/{self.file}"


def _stream(invariant: str, file: str, guard: str, broken: str, test: str) -> Mutant:
    return Mutant(invariant, f"tokens/{file}.py", guard, broken, f"tests/tokens/test_{test}")


def _queue(invariant: str, file: str, guard: str, broken: str, test: str) -> Mutant:
    return Mutant(invariant, f"{file}.py", guard, broken, f"tests/serve/test_{test}")


MUTANTS = (
    # docs/formats/stream.md
    Mutant(
        "S1",
        "kernels/reference_tokens.py",
        "        self.data[self.n_tokens : self.n_tokens + n_new] = tokens\n",
        "        store_word(self.head, PUBLISHED, self.n_rows + n)\n"
        "        self.data[self.n_tokens : self.n_tokens + n_new] = tokens\n",
        "tests/kernels/test_token_kernels.py::test_the_length_is_published_behind_everything_it_covers",
    ),
    _stream(
        "S1",
        "writer",
        "            recorder.is_held = True\n",
        "",
        "hf.py::test_nobody_sees_half_of_a_dataset",
    ),
    _stream(
        "S2",
        "writer",
        "        if self.head.published < self.recorder.n_rows:\n",
        "        if True:\n",
        "breaks.py::test_a_dataset_carries_the_breaks",
    ),
    _stream(
        "S2",
        "reader",
        "        if state.rows < self.state.rows:\n",
        "        if False:\n",
        "power_loss.py::test_a_stream_never_gets_shorter_for_a_reader",
    ),
    _stream(
        "S3", "encoding", "    if this > last:\n", "    if True:\n", "append.py::test_what_is_out_of_order_is_refused"
    ),
    _stream(
        "S4",
        "opening",
        "owner.boot == boot_id() and ",
        "",
        "power_loss.py::test_a_stream_of_another_boot_is_what_was_committed_to_readers_too",
    ),
    _stream(
        "S4",
        "opening",
        " and not _is_copied(owner, lanes)",
        "",
        "power_loss.py::test_a_copy_of_the_directory_holds_what_was_committed",
    ),
    _stream(
        "S4",
        "opening",
        "if owner is None or min(words) < 0 or kinds is None:",
        "if False:",
        "kills.py::test_a_torn_word_is_never_taken_for_a_length",
    ),
    _stream(
        "S5",
        "commits",
        "                self._lanes.sync()\n",
        "                pass\n",
        "power_loss.py::test_a_commit_syncs_the_lanes_then_writes_its_record_then_syncs_that",
    ),
    _stream(
        "S5",
        "logs",
        "        if durable:\n            sync(self._fd, self.path)\n",
        "",
        "power_loss.py::test_a_commit_syncs_the_lanes_then_writes_its_record_then_syncs_that",
    ),
    _stream(
        "S6",
        "opening",
        "    if n_committed > last.seq:\n",
        "    if False:\n",
        "verify_commits.py::test_an_older_log_with_a_newer_directory_is_told",
    ),
    _stream(
        "S6",
        "logs",
        "            if not follows(ordered[i - 1] if i else None, record):\n",
        "            if False:\n",
        "verify_commits.py::test_a_missing_commit_in_the_middle_is_told",
    ),
    _stream(
        "S6",
        "logs",
        "    if branches.n_records < n_synced:\n",
        "    if False:\n",
        "damage.py::test_both_lines_of_a_record_damaged_are_an_error",
    ),
    _stream(
        "S6",
        "opening",
        "    return max(head.branches, last.branches or 0)\n",
        "    return head.branches\n",
        "damage.py::test_branches_that_are_missing_beside_a_damaged_head_are_an_error",
    ),
    _stream(
        "S7",
        "commits",
        "            if self._is_log_torn:\n",
        "            if False:\n",
        "power_loss.py::test_a_commit_of_more_than_the_one_that_broke_off_has_another_number",
    ),
    _stream(
        "S7",
        "logs",
        "            if found.setdefault(record.seq, record) != record:\n",
        "            if found.setdefault(record.seq, record) is None:\n",
        "verify_commits.py::test_two_commits_of_one_number_are_told",
    ),
    _stream(
        "S8",
        "commits",
        "        if checksum_hex(lane.file.bytes[start:stop].data) != expected:\n",
        "        if False:\n",
        "verify_commits.py::test_verify_checks_every_byte",
    ),
    _stream(
        "S9",
        "writer",
        "            if len(written.steps):\n                self._begin_branch()\n",
        "",
        "breaks.py::test_the_break_is_on_disk_before_what_comes_behind_it",
    ),
    _stream(
        "S9",
        "writer",
        "durable=not self.is_temporary)\n        self.branches",
        "durable=False)\n        self.branches",
        "breaks.py::test_the_break_is_on_disk_before_what_comes_behind_it",
    ),
    _stream(
        "S10",
        "logs",
        "            while counting and counting[-1].rows >= record.rows:\n                counting.pop()\n",
        "",
        "breaks.py::test_records_count_until_a_later_one_replaces_their_rows",
    ),
    _stream(
        "S11",
        "writer",
        "not self._continues_episode and rows == self._opened_at > 0",
        "False",
        "breaks.py::test_a_killed_recorder_ends_its_episode",
    ),
    _stream(
        "S11",
        "sampling",
        "breaks[(tokens >= begin) & (tokens <= end)]",
        "breaks[:0]",
        "breaks.py::test_a_killed_recorder_ends_its_episode",
    ),
    Mutant(
        "S12",
        "concurrency.py",
        "        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        "        pass\n",
        "tests/tokens/test_processes.py::test_a_second_writer_is_refused_and_told_who_the_first_is",
    ),
    _stream(
        "S13",
        "memmap_buffer",
        "one_name=is_writable)",
        "one_name=False)",
        "damage.py::test_a_file_that_is_written_in_place_has_one_name",
    ),
    _stream(
        "S13",
        "logs",
        'one_name=mode != "r")',
        "one_name=False)",
        "damage.py::test_a_file_that_is_written_in_place_has_one_name",
    ),
    _stream(
        "S14",
        "stream_files",
        "            lane.close(cut=False)\n",
        "            lane.close(cut=True)\n",
        "verify_commits.py::test_closing_commits",
    ),
    Mutant(
        "S15",
        "files/space.py",
        "                _allocate(fd, start, min(_ALLOCATE, size - start))\n",
        "                os.ftruncate(fd, size)\n",
        "tests/files/test_space.py::test_a_file_grows_over_space_that_is_there",
    ),
    _stream(
        "S16",
        "reading",
        "        if source.kept_from() != first:\n            self._check_kept(begins)\n",
        "",
        "processes.py::test_a_window_that_has_left_since_the_reader_looked_is_told",
    ),
    _stream(
        "S17",
        "commits",
        "                if self._is_durable:\n                    self.commit(state, n_branches)\n",
        "",
        "kills.py::test_killed_while_a_bounded_stream_gives_space_back",
    ),
    _stream(
        "S18",
        "directory",
        "            lanes.sync()\n            head.sync()\n",
        "",
        "power_loss.py::test_a_new_stream_is_on_disk_with_all_its_names_before_it_is_one",
    ),
    _stream(
        "S18",
        "directory",
        "            sync_directory(path)\n    _write",
        "    _write",
        "power_loss.py::test_a_new_stream_is_on_disk_with_all_its_names_before_it_is_one",
    ),
    _stream(
        "S19",
        "logs",
        "        return json.loads(line[17:])\n",
        "        return __import__('pickle').loads(line[17:])\n",
        "canary.py::test_no_file_is_unpickled",
    ),
    # docs/formats/queue.md
    _queue(
        "Q1",
        "transports/log",
        "                partial.link(self.name_of(number))\n",
        "                partial.rename(Path(self.name_of(number)))\n",
        "kills.py::test_a_number_is_not_used_again_when_its_publisher_was_killed",
    ),
    _queue(
        "Q1",
        "transports/log",
        "        self._next.write(max(self.next_number(), watermark))\n",
        "",
        "kills.py::test_a_number_is_not_used_again_when_its_publisher_was_killed",
    ),
    _queue(
        "Q2",
        "serve/reader",
        "        if start < watermark:\n",
        "        if False:\n",
        "exactly_once.py::test_an_older_state_is_refused_once_its_batches_are_gone",
    ),
    _queue(
        "Q3",
        "transports/log",
        "                number = self._link(partial)\n                self._next.write(number + 1)\n",
        "                self._next.write(self.next_number() + 1)\n"
        "                number = self.next_number() - 1\n"
        "                partial.link(self.name_of(number))\n",
        "kills.py::test_killed_while_it_publishes",
    ),
    _queue(
        "Q3",
        "transports/log",
        "                self.bury(number, LOST)",
        "                pass",
        "queue_faults.py::test_a_batch_that_was_removed_by_hand_is_told",
    ),
    _queue(
        "Q4",
        "files/publishing",
        " and os.fstat(fd).st_nlink == 1 and stat.S_ISREG",
        " and stat.S_ISREG",
        "queue_faults.py::test_a_batch_that_has_another_name_is_not_written_over",
    ),
    _queue(
        "Q4",
        "transports/log",
        "0 < status.st_size <= COPIED_BYTES",
        "0 < status.st_size",
        "queue_faults.py::test_batches_that_were_handed_out_stay_as_they_are",
    ),
    _queue(
        "Q5",
        "serve/producer",
        "                    counters.append(metadata.counter + 1)\n",
        "                    pass\n",
        "kills.py::test_killed_while_it_publishes",
    ),
    _queue(
        "Q5",
        "serve/producer",
        "        counters.append(consumed.counters.get(self.name, -1) + 1)\n",
        "",
        "damage.py::test_a_providers_note_that_is_lost_heals_from_the_watermark",
    ),
    _queue(
        "Q7",
        "serve/ranks",
        "min(numbers[1] for numbers in found)",
        "max(numbers[1] for numbers in found)",
        "exactly_once.py::test_no_batch_is_removed_that_a_rank_is_not_done_with",
    ),
    _queue(
        "Q8",
        "transports/log",
        "            partial.finish(durable=self._is_durable)\n",
        "            partial.finish(durable=False)\n",
        "durability.py::test_a_published_batch_is_on_the_disk",
    ),
    _queue(
        "Q8",
        "transports/log",
        "        if self._is_durable:\n            sync_directory(self.path)\n",
        "",
        "durability.py::test_a_published_batch_is_on_the_disk",
    ),
    _queue(
        "Q9",
        "transports/log",
        'self._consumed.write(value, after={"turn": consumed.turn}, durable=self._is_durable)',
        'self._consumed.write(value, after={"turn": consumed.turn}, durable=False)',
        "durability.py::test_what_is_done_is_on_the_disk_before_anything_is_deleted",
    ),
    _queue(
        "Q10",
        "transports/batch_file",
        "    if verify:\n        _check(header, view, place)\n",
        "",
        "damage.py::test_a_consumer_hands_out_right_batches_only",
    ),
    _queue(
        "Q11",
        "ragged",
        "        if len(falls):\n",
        "        if False:\n",
        "ragged.py::test_sealed_lies_are_refused",
    ),
    _queue(
        "Q11",
        "ragged",
        "        if offsets[0] != 0:\n",
        "        if False:\n",
        "ragged.py::test_sealed_lies_are_refused",
    ),
    _queue(
        "Q11",
        "ragged",
        "        if offsets[-1] != len(self.values):\n",
        "        if False:\n",
        "ragged.py::test_sealed_lies_are_refused",
    ),
    _queue(
        "Q11",
        "transports/batch_file",
        '        if problem is not None:\n            raise _corrupt(place, f"of column {name!r}, {problem}")\n',
        "",
        "ragged.py::test_sealed_lies_are_refused",
    ),
    _queue(
        "Q11",
        "transports/batch_file",
        'row = first_bad_text(column) if expected == "string" else None',
        "row = None",
        "ragged.py::test_sealed_text_that_is_no_utf_8_is_refused",
    ),
    Mutant(
        "Q6",
        "transports/batch_file.py",
        "import json\n",
        "import json\nimport pickle\n",
        "tests/test_structure.py::test_data_is_never_code",
    ),
)


def chosen(ids: Iterable[str]) -> list[Mutant]:
    """The mutants of some invariants, or all."""
    wanted = set(ids)
    unknown = wanted - {mutant.invariant for mutant in MUTANTS}
    if unknown:
        raise SystemExit(f"no invariant {', '.join(sorted(unknown))}; there are those of docs/formats")
    return [mutant for mutant in MUTANTS if not wanted or mutant.invariant in wanted]


def copy_project(folder: Path) -> None:
    """What the tests need, without what git ignores; the compiled kernels come along."""
    skipped = shutil.ignore_patterns("__pycache__", "build")
    for name in ("src", "tests", "docs", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=skipped)
    for name in ("pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)


def run(folder: Path, tests: Iterable[str]) -> tuple[int, str]:
    """The status of pytest in a copy of the project, and what it printed; 124 where it was stopped."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return 124, f"stopped after {TIMEOUT_S} s"
    return done.returncode, done.stdout + done.stderr


def verdict(folder: Path, mutant: Mutant) -> str | None:
    """Why a mutant was not caught; None if its test failed, or the process that ran it died."""
    path = folder / mutant.path
    source = path.read_text()
    if source.count(mutant.guard) != 1:
        return f"{mutant.path}: the guard is there {source.count(mutant.guard)} times, not once"
    path.write_text(source.replace(mutant.guard, mutant.broken))
    try:
        status, output = run(folder, [mutant.test])
    finally:
        path.write_text(source)
    if status in (2, 3, 4, 5):  # nothing was tested: the source cannot be imported, or there is no such test
        return f"the test did not run:\n{output[-2000:]}"
    return "the test passes without the guard" if status == 0 else None


def main(ids: list[str]) -> int:
    """Run the mutants; 1 if any was not caught."""
    mutants, n_missed = chosen(ids), 0
    with tempfile.TemporaryDirectory(prefix="poolish-mutants-") as name:
        folder = Path(name)
        copy_project(folder)
        status, output = run(folder, sorted({mutant.test for mutant in mutants}))
        if status:
            print(f"the tests fail before anything is changed:\n{output[-4000:]}")
            return 1
        for mutant in mutants:
            missed = verdict(folder, mutant)
            n_missed += missed is not None
            place = f"{mutant.invariant:<4} {mutant.path}: {mutant.guard.strip().splitlines()[0]}"
            print(f"{'caught' if missed is None else 'MISSED'} {place}", flush=True)
            if missed is not None:
                print(f"       {mutant.test}: {missed}", flush=True)
    print(f"{len(mutants) - n_missed} of {len(mutants)} mutants caught")
    return int(n_missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
