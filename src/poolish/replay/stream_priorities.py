"""StreamPriorities: transitions of a stream drawn in proportion to a power of their priority.

    stream (its recorder's)   0 1 2 3 | 4 5 6 ...      steps, appended and trimmed by another process
    side file (a learner's)     . p p p   p p          priorities of the kept transitions; other steps have 0

The priorities belong to the learner that draws: the recorder knows nothing of them, and several learners can each
have a file. Steps that are new get the largest priority that there is now; steps that left the stream leave.
"""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poolish.arguments import check_whole
from poolish.errors import ConfigError, CorruptDataError, ResumeError
from poolish.files import Lock
from poolish.priorities import PriorityTree, check_exponents, check_priorities
from poolish.replay.priority_file import PriorityFile
from poolish.tokens.store import StreamStore

Int64 = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Items without a priority that lie before the first kept step, until the tree is made anew without them.
_GONE = 1 << 12


class PriorityDraw(NamedTuple):
    """Steps that were drawn, with replacement, in ascending order."""

    ids: Int64
    probabilities: Floats
    weights: Floats


class StreamPriorities:
    """Priorities of the transitions of a stream, in memory or in a side file that survives kills.

    ``alpha`` is the power of a priority, 0 to draw uniformly. What the stream holds is looked at with each call; a
    reader's own ``refresh`` decides how far that is. Once ``update`` returns, it survives ``kill -9``; once ``commit``
    returns, a power cut. Ids are those of ``store.transition_ids()``: how many steps were recorded before.

    >>> from poolish import StreamStore
    >>> from poolish.replay import EpisodeWriter
    >>> store = StreamStore(fields=["obs", "action", "reward", "terminated", "truncated", "final_obs"])
    >>> writer = EpisodeWriter(store)
    >>> writer.begin([0.0])
    >>> for i in range(4):
    ...     writer.step([i + 1.0], action=[0], reward=1.0, terminated=i == 3)
    >>> priorities = StreamPriorities(store, folder / "td", alpha=1.0)
    >>> priorities.update([1, 3, 99], [3.0, 0.0, 1.0])
    array([99])
    >>> draw = priorities.sample(1_000, rng=np.random.default_rng(0), beta=1.0)
    >>> np.bincount(draw.ids).tolist()
    [200, 600, 200]
    """

    def __init__(
        self,
        store: StreamStore,
        path: str | os.PathLike[str] | None = None,
        *,
        alpha: float = 0.6,
        rebuild: bool = False,
        **transitions: Any,
    ) -> None:
        """Make priorities for a stream, or read those at ``path``; ``rebuild=True`` starts with equal ones instead.

        ``transitions`` are options of ``store.transition_ids``: roles of fields, ``stack``.
        """
        check_exponents(alpha, 0.0)
        self.store = store
        store.refresh()
        self._options = transitions
        self._thread_lock, self._pid = threading.Lock(), os.getpid()
        self._tree = PriorityTree(alpha)
        self._first = self._end = store.step_span()[0]
        self._cleared = self._n = 0
        self._valid = bytearray()  # for each item whether it is a transition
        self._last_largest = 0.0
        self._branch = ""
        self._file: PriorityFile | None = None
        self._lock: Lock | None = None
        self._closing: weakref.finalize[..., StreamPriorities] | None = None
        if path is not None:
            self._open(Path(path), rebuild)
        self._follow()

    def _open(self, path: Path, rebuild: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = Lock(path.with_name(path.name + ".lock"))
        lock.acquire()
        try:
            file = PriorityFile(path)
            alpha = self._tree.alpha
            known = False
            if not rebuild:
                for head, body in file.records():
                    self._replay(head, body, path)
                    known = True
            self._tree.set_alpha(alpha)
            self._file, self._lock = file, lock
            self._check_stream(path)
            if not known or file.is_large:
                self._write_state()
        except BaseException:
            self._file = self._lock = None
            lock.release()
            raise
        self._closing = weakref.finalize(self, _close, file, lock, self._pid)

    # Reading the file back --------------------------------------------------------------------------------------

    def _replay(self, head: dict[str, Any], body: Int64, path: Path) -> None:
        """Do again what a record says."""
        try:
            _REPLAY[head["kind"]](self, head, body)
        except ResumeError:
            raise
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CorruptDataError(
                f"{path}: no record of priorities in {head!r} ({error}); restore the file, or start with equal "
                "priorities: rebuild=True"
            ) from error

    def _replay_state(self, head: dict[str, Any], body: Int64) -> None:
        if head["stream"] != self.store.uuid:
            raise ResumeError("the side file belongs to another stream; choose another path, or rebuild=True")
        self._tree = PriorityTree(head["alpha"])
        self._first = self._end = head["first"]
        self._cleared, self._n, self._valid = 0, 0, bytearray()
        self._extend(head["end"], 0.0, body[head["n"] :])
        self._tree.update(np.arange(head["n"]), body[: head["n"]].view(np.float64))
        self._branch, self._last_largest = head["branch"], head["largest"]

    def _replay_steps(self, head: dict[str, Any], body: Int64) -> None:
        self._extend(head["end"], head["priority"], body)
        self._branch = head["branch"]

    def _replay_update(self, head: dict[str, Any], body: Int64) -> None:
        ids, values = body[: head["n"]], body[head["n"] :].view(np.float64)
        self._tree.update(ids - self._first, values)
        self._last_largest = self._tree.largest or self._last_largest

    def _check_stream(self, path: Path) -> None:
        """Refuse priorities of steps that the stream does not have, or has others in the place of."""
        end = self.store.step_span()[1]
        if self._end > self._first and not (self._end <= end and self.store.has_branch(self._branch)):
            raise ResumeError(
                f"{path}: has priorities up to step {self._end:,} of a stream that now holds other steps up to {end:,} "
                "(it lost some, or it is a copy that went on by itself); start with equal priorities: rebuild=True"
            )

    # What the stream holds --------------------------------------------------------------------------------------

    def refresh(self) -> int:
        """Give steps that are new the largest priority, forget those that left; how many transitions there are."""
        with self._alone():
            self._follow()
            return self._n

    def _follow(self) -> None:
        first, end = self.store.step_span()
        if end > self._end:
            found = self.store.transition_ids(**self._options)
            begin, decided = max(self._end, found.first), end - found.pending
            if decided > begin:
                ids = np.arange(begin, decided)
                self._add(begin, decided, ids[~found.are_valid(ids)])
        if first:  # of what is kept, the oldest steps have no frames before them
            first = min(first + self._options.get("stack", 1) - 1, end)
        if first > self._first + self._cleared:
            self._forget(first)

    def _add(self, begin: int, end: int, without: Int64) -> None:
        if begin > self._end:  # steps that came and left between two looks
            without = np.concatenate([np.arange(self._end, begin), without])
        self._last_largest = self._tree.largest or self._last_largest
        priority = self._last_largest or 1.0
        branch = self.store.branch_below(end)
        if self._file is not None:
            self._file.append({"kind": "steps", "branch": branch, "end": end, "priority": priority}, without)
        self._branch = branch
        self._extend(end, priority, without)

    def _extend(self, end: int, priority: float, without: Int64) -> None:
        n = end - self._end
        valid = np.ones(n, np.bool_)
        valid[without - self._end] = False
        self._tree.extend(n, priority)
        if len(without):
            self._tree.update(without - self._first, np.zeros(len(without)))
        self._valid += valid.tobytes()
        self._n += n - len(without)
        self._end = end

    def _forget(self, first: int) -> None:
        """Take the priority of what left; now and then, its place too."""
        gone = min(first, self._end) - self._first
        self._last_largest = self._tree.largest or self._last_largest
        self._tree.clear(self._cleared, gone)
        self._n -= self._valid.count(1, self._cleared, gone)
        self._cleared = gone
        if gone > max(_GONE, len(self._tree) // 2):
            self._tree = self._tree.taking(np.arange(gone, len(self._tree)))
            self._first, self._cleared = self._first + gone, 0
            del self._valid[:gone]
            if self._file is not None:
                self._write_state()

    def _are_transitions(self, ids: Int64) -> NDArray[np.bool_]:
        """Which ids are transitions that the stream still has."""
        valid = np.frombuffer(self._valid, np.bool_)
        inside = (ids >= self._first + self._cleared) & (ids < self._end)
        if inside.all():
            return valid[ids - self._first]
        inside[inside] = valid[ids[inside] - self._first]
        return inside

    # Drawing and changing ---------------------------------------------------------------------------------------

    def sample(self, n: int, *, rng: np.random.Generator, beta: float = 0.4) -> PriorityDraw:
        """Draw ``n`` transitions; their weights are 1 for the rarest, for losses that stay unbiased with ``beta=1``."""
        check_whole(n, "n", least=0, unit="transitions")
        with self._alone():
            self._follow()
            if n and not self._tree.total > 0:
                raise ConfigError(f"{self!r}: no transition has a priority above 0; record some, or update some")
            draw = self._tree.sample(n, rng, beta)
            return PriorityDraw(draw.items + self._first, draw.probabilities, draw.weights)

    def update(self, ids: ArrayLike, priorities: ArrayLike) -> Int64:
        """Give transitions new priorities, all or none; the ids that are no transitions of the stream (any more).

        Where an id is there twice, the last one counts.
        """
        given = np.atleast_1d(np.asarray(ids))
        if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
            raise ConfigError(f"ids are whole numbers in a row, got {given.dtype} of shape {given.shape}")
        given = given.astype(np.int64)
        values = check_priorities(priorities, given, self._tree.alpha, len(given))
        with self._alone():
            self._follow()
            known = self._are_transitions(given)
            taken = given
            if not known.all():
                taken, values = given[known], values[known]
            if self._file is not None and len(taken):
                self._file.append({"kind": "update", "n": len(taken)}, taken, values)
            self._tree.update(taken - self._first, values)
            self._last_largest = self._tree.largest or self._last_largest
            if self._file is not None and self._file.is_large:
                self._write_state()
        return given[~known]

    def priorities_of(self, ids: ArrayLike) -> Floats:
        """The priorities of transitions; 0 for steps that are none, or have left."""
        with self._alone():
            self._follow()
            given = np.atleast_1d(np.asarray(ids, np.int64))
            known, found = self._are_transitions(given), np.zeros(len(given))
            found[known] = self._tree.priorities[given[known] - self._first]
            return found

    @property
    def total(self) -> float:
        """The sum of all priorities to the power of alpha."""
        with self._alone():
            self._follow()
            return self._tree.total

    @property
    def smallest(self) -> float:
        """The smallest priority above 0, to the power of alpha."""
        with self._alone():
            return self._tree.smallest

    @property
    def alpha(self) -> float:
        """The power of a priority."""
        return self._tree.alpha

    def __len__(self) -> int:
        return self.refresh()

    def __bool__(self) -> bool:
        return True

    # Keeping ----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make every update so far survive a power cut."""
        with self._alone():
            if self._file is not None:
                self._file.commit()

    def close(self) -> None:
        """Commit, close the side file, and let another process have it."""
        self._file = self._lock = None
        if self._closing is not None:
            self._closing()

    def _write_state(self) -> None:
        assert self._file is not None
        branch = self.store.branch_below(self._end)
        state = {"kind": "state", "stream": self.store.uuid, "branch": branch, "end": self._end}
        numbers = {"alpha": self._tree.alpha, "first": self._first, "n": len(self._tree), "largest": self._last_largest}
        without = np.flatnonzero(~np.frombuffer(self._valid, np.bool_)) + self._first
        self._file.replace({**state, **numbers}, self._tree.priorities, without)

    def _alone(self) -> threading.Lock:
        if os.getpid() != self._pid and self._file is not None:
            raise ConfigError(
                f"{self._file.path}: these priorities belong to process {self._pid}, from which this one was forked; "
                "sample and update there, or open another side file here"
            )
        return self._thread_lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = f" at {self._file.path}" if self._file is not None else ""
        return f"<StreamPriorities of {len(self._tree) - self._cleared:,} steps{where}>"

    def __reduce__(self) -> str:
        raise TypeError(
            "priorities belong to the process that draws by them; make them there, with a path of their own"
        )


def _close(file: PriorityFile, lock: Lock, pid: int) -> None:
    """Commit a side file and give it up, in the process that opened it."""
    if os.getpid() == pid:
        try:
            file.commit()
        finally:
            file.close()
            lock.release()


_REPLAY = {
    "state": StreamPriorities._replay_state,
    "steps": StreamPriorities._replay_steps,
    "update": StreamPriorities._replay_update,
}
