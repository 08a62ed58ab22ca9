"""Ctrl-C at any moment of next(): a batch that was not returned was not delivered and comes next, each exactly once."""

from __future__ import annotations

import dis
import random
import signal
import sys
from pathlib import Path

import pytest

import poolish.load
from poolish.errors import ConfigError
from poolish.guards import Suite
from poolish.load import order
from tests.effort import times
from tests.faults import in_child, in_own_process
from tests.load.loaders import buffer, ids, load, plain, rows, saved

#: Where batches are handed over. Not where locks are held: Python raises between no two instructions of ``with lock``.
_FILES = {
    str(Path(poolish.load.__file__).with_name(f"{name}.py"))
    for name in ("loader", "reader", "progress", "batch", "planner", "fetch", "guarding")
}

#: What weakrefs call: Python swallows an interrupt there.
_FINALIZERS = {"close", "dismiss"}

KINDS = {
    "buffer": lambda tmp_path: {},
    "threads": lambda tmp_path: {"num_workers": 2},
    "explicit": lambda tmp_path: {"acknowledge": "explicit"},
    "explicit threads": lambda tmp_path: {"acknowledge": "explicit", "num_workers": 2},
    "journal": lambda tmp_path: {"journal": tmp_path / "journal"},
    "guard": lambda tmp_path: {"guard": Suite().stat("n", mean=(0, 100)).guard(window=4)},
}


class Interrupt:
    """Raises KeyboardInterrupt at the nth moment inside poolish.load: before a line, or before a single instruction."""

    def __init__(self, n_moments, *, by_instruction):
        self.left, self._by_instruction, self.has_come = n_moments, by_instruction, False

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _trace(self, frame, event, _):
        if frame.f_code.co_filename not in _FILES or frame.f_code.co_name in _FINALIZERS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = self._by_instruction, not self._by_instruction
        code = frame.f_code
        if code.co_name == "__next__" and code.co_code[frame.f_lasti] == dis.opmap["RETURN_VALUE"]:
            return self._trace  # next() returns: what comes now is the caller's
        if event in ("line", "opcode"):
            self.left -= 1
            if not self.left:
                self.has_come = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


def next_or_end(iterator):
    return plain(batch) if (batch := next(iterator, None)) is not None else None


@pytest.mark.parametrize("by_instruction", [False, True], ids=["line", "instruction"])
@pytest.mark.parametrize("kind", KINDS)
@in_own_process
def test_an_interrupt_before_any_instruction_of_next_leaves_its_batch_next(kind, by_instruction, tmp_path, monkeypatch):
    """Before each line or instruction in turn: the state is as it was, and the same batch, or the end, is next."""
    monkeypatch.setattr(order, "BLOCK_ROWS", 5)
    settings = KINDS[kind](tmp_path)
    source, options = buffer(9), {"shuffle": True, "follow": True}
    expected = [plain(batch) for batch in load(source, 2, **options)] + [None]
    chance, n_interrupts = random.Random(by_instruction), 0
    loader = load(source, 2, **options, **settings)
    step = 5 if by_instruction else 1
    for round_ in range(times(2)):
        loader.set_epoch(0)
        first = loader.step
        iterator, moment = iter(loader), 0
        for number, wanted in enumerate(expected):
            moment = 0
            while True:
                moment += chance.randint(1, 2 * step - 1) if by_instruction else 1
                before = saved(loader)
                with Interrupt(moment, by_instruction=by_instruction) as interrupt:
                    try:
                        got = next_or_end(iterator)
                    except KeyboardInterrupt:
                        assert interrupt.has_come
                        n_interrupts += 1
                        # An end that was found may be interrupted as it is raised: then the iterator is over.
                        is_over = wanted is None and loader.epoch == 1
                        assert is_over or saved(loader) == before, (round_, number, moment)
                        continue
                break
            assert got == (wanted and (*wanted[:2], wanted[2] + first, wanted[3])), (round_, number, moment)
        for _ in expected[:-1] if "acknowledge" in settings else ():
            loader.mark_trained()
        if "acknowledge" in settings:
            with pytest.raises(ConfigError, match="no batch is in flight"):
                loader.mark_trained()
        assert saved(loader)["epoch"] == 1
        loader.set_epoch(2)
    loader.close()
    assert n_interrupts > 200


@pytest.mark.parametrize("acknowledge", ["on_yield", "explicit"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_signals_at_any_moment_of_next_lose_and_repeat_nothing(num_workers, acknowledge):
    """Thousands of real signals: what next() returned, and only that, is delivered, and each row comes once."""

    def child():
        source, chance = buffer(4000), random.Random(num_workers)
        loader = load(source, 2, shuffle=True, follow=True, num_workers=num_workers, acknowledge=acknowledge)
        seen, n_interrupts, n_tries, is_armed = [], 0, 0, False

        def interrupt(*_):
            nonlocal is_armed
            if is_armed:
                is_armed = False
                raise KeyboardInterrupt

        signal.signal(signal.SIGALRM, interrupt)
        for _ in range(times(1)):
            seen.clear()
            iterator, is_over = iter(loader), False
            while not is_over:
                before, batch, n_tries = loader.step, None, n_tries + 1
                # Some calls are left alone, so that the epoch ends however slow the machine is.
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-4) if n_tries % 4 else 0)
                try:
                    is_armed = True
                    batch = iterator.__next__()
                except StopIteration:
                    is_over = True
                except KeyboardInterrupt:
                    n_interrupts += 1
                    # The signal may also come after next() has returned, before the name holds the batch.
                    if loader.step != before:
                        seen.append([None, None])
                is_armed = False
                if batch is not None:
                    assert (batch.step, loader.step) == (before, before + 1)
                    seen.append(batch.ids.tolist())
            assert len(seen) == 2000
            known = [id_ for pair in seen for id_ in pair if id_ is not None]
            assert len(set(known)) == len(known)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert n_interrupts > 20
        assert len(known) > 2000

    assert in_child(child) == 0


def test_an_error_counts_skipped_rows_once():
    """Rows that are gone are counted with the batch that is delivered, not with each attempt to read it."""

    def collate(samples):
        if failures:
            raise failures.pop()
        return {"n": [sample["n"] for sample in samples]}

    source = buffer(8)
    first = load(source, 4, collate_fn=collate)
    failures = []
    state = saved(first)
    next(iter(first))
    state = saved(first)
    source.retain(0.25)
    resumed = load(source, 4, collate_fn=collate)
    resumed.load_state_dict(state)
    failures += [RuntimeError("the disk is gone"), KeyboardInterrupt()]

    for error in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(error):
            next(iter(resumed))  # nothing was delivered since, so each loop goes on from the state
        assert resumed.n_skipped == 0
    assert ids(resumed) == [6, 7]
    assert resumed.n_skipped == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stop_iteration_of_the_dataset_does_not_end_the_epoch(num_workers):
    """A stray next() in a dataset would look like the end of the data: it is an error instead."""

    class Stopping(list):
        def __getitem__(self, index):
            return next(iter(())) if index == 5 else super().__getitem__(index)

    loader = load(Stopping(rows(10)), 2, num_workers=num_workers)

    with pytest.raises(RuntimeError, match="StopIteration came from a function that reads"):
        list(loader)
    loader.close()


@pytest.mark.parametrize("follow", [False, True])
def test_an_older_iterator_raises_when_there_is_a_newer_one(follow):
    """Both would move one place, and each would miss what the other has had."""
    loader = load(buffer(8), 2, follow=follow)
    older = iter(loader)
    next(older)
    newer = iter(loader)

    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"superseded: a later iter\(\)"):
            next(older)
    assert ids(newer) == list(range(2 if follow else 0, 8))
    with pytest.raises(RuntimeError, match="superseded"):
        next(older)


def test_an_iterator_that_is_over_stays_over():
    """As Python's iterators do, whatever comes after it."""
    loader = load(buffer(4), 2)
    older = iter(loader)
    assert len(list(older)) == 2
    next(iter(loader))

    assert list(older) == []
