"""Ranks of a real process group: found when they are needed, compared where they begin, in step whatever they hold."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from poolish import DatasetBuffer, StreamStore
from poolish.errors import ConfigError
from poolish.load import Loader, TransformedDataset, order
from tests.groups import in_group, init_group
from tests.load.loaders import buffer, extend, load, rows, stream


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(order, "BLOCK_ROWS", 8)
    torch.set_num_threads(1)


def epoch(loader):
    """The ids of each batch of an epoch."""
    return [batch.ids.tolist() for batch in loader]


def all_ids(ranks):
    return sorted(id_ for batches in ranks for batch in batches for id_ in batch)


# Which rank -------------------------------------------------------------------------------------------------------


def test_ranks_are_those_of_the_process_group(tmp_path):
    """Without arguments; a loader that is made before the group exists finds it at the first batch."""
    early = load(rows(11), 2, shuffle=True)

    def run(rank):
        found = load(rows(11), 2, shuffle=True)
        return [len(early), early.rank, early.world_size, epoch(early), epoch(found)]

    results = in_group(tmp_path, 2, run)

    assert [result[:3] for result in results] == [[3, 0, 2], [3, 1, 2]]
    assert all_ids(result[3] for result in results) == list(range(11))
    assert [result[3] for result in results] == [result[4] for result in results]


def test_a_group_and_a_mesh_say_which_rank_it_is(tmp_path):
    """A part of the processes; and along the data-parallel dimension, where tensor-parallel peers get the same rows."""

    def run(rank):
        from torch.distributed.device_mesh import init_device_mesh

        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        source = buffer(12)
        by_group = load(source, 2, shared="copy", group=pairs[rank // 2])
        by_mesh = load(source, 2, shared="copy", shuffle=True, follow=True, journal="group", mesh=mesh)
        by_submesh = load(source, 2, shared="copy", mesh=mesh["dp"])
        with pytest.raises(ConfigError, match="none of its ranks"):
            len(load(source, 2, shared="copy", group=pairs[1 - rank // 2]))
        with pytest.raises(ConfigError, match=r"group= and mesh=.*pass one of them"):
            load(source, group=pairs[0], mesh=mesh)
        return [epoch(by_group), epoch(by_mesh), epoch(by_submesh), [by_mesh.rank, by_mesh.world_size]]

    results = in_group(tmp_path, 4, run)

    for groups in ((0, 1), (2, 3)):
        assert all_ids(results[rank][0] for rank in groups) == list(range(12))
    assert results[0][1:3] == results[1][1:3]
    assert results[2][1:3] == results[3][1:3]
    for kind in (1, 2):
        assert all_ids(results[rank][kind] for rank in (0, 2)) == list(range(12))
    assert [result[3] for result in results] == [[0, 2], [0, 2], [1, 2], [1, 2]]


def test_a_mesh_without_a_known_dimension_is_refused(tmp_path):
    """The message says which dimensions there are, and how to name one."""

    def run(rank):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "mine"))
        message = None
        try:
            len(load(rows(4), 2, mesh=mesh))
        except ConfigError as error:
            message = str(error)
        return [message, epoch(load(rows(4), 1, mesh=mesh["mine"]))]

    results = in_group(tmp_path, 2, run)

    assert "dimensions ['pp', 'mine']" in results[0][0]
    assert "pass mesh['NAME']" in results[0][0]
    assert all_ids(result[1] for result in results) == [0, 1, 2, 3]


def test_a_rank_that_changes_later_is_an_error(tmp_path):
    """A loader that has read as rank 0 of 1 must not go on as rank 1 of 2."""
    early = load(rows(6), 2)
    assert len(early) == 3

    (first, second) = in_group(tmp_path, 2, lambda rank: epoch(early))

    assert "it has begun as rank 0 of 1" in first
    assert "torch.distributed says rank 1 of 2" in second


def test_a_world_without_a_rank_is_an_error(monkeypatch):
    """Lightning's launcher sets WORLD_SIZE and no RANK: every process would be rank 0."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    loader = load(rows(6), 2)

    for ask in (len, iter):
        with pytest.raises(ConfigError, match="WORLD_SIZE=2 and no RANK"):
            ask(loader)
    assert len(load(rows(6), 2, rank=0, world_size=1)) == 3


# The rows of several processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap", [lambda made: made, DatasetBuffer.snapshot, lambda made: TransformedDataset(made, dict)]
)
def test_rows_in_memory_are_declared(wrap, tmp_path):
    """Neither everything on every rank nor a share of other rows happens unasked; the error shows both options."""
    source = wrap(buffer(8))

    results = in_group(tmp_path, 2, lambda rank: len(load(source, 2)))

    for result in results:
        assert "shared='copy' if every process holds the same rows" in result
        assert "shared='own'" in result


def test_copies_are_dealt_out_and_grow_alike(tmp_path):
    """Every process appends the same rows; together the ranks read each of them once."""

    def run(rank):
        source = buffer(20)
        loader = load(source, 3, shuffle=True, follow=True, shared="copy", journal="group")
        seen = []
        for batch in loader:
            seen.append(batch.ids.tolist())
            if len(source) < 50:
                extend(source, 5)
        return seen

    results = in_group(tmp_path, 3, run)

    assert all_ids(results) == list(range(50))
    assert len({len(result) for result in results}) == 1


@pytest.mark.parametrize("follow", [False, True])
def test_copies_that_differ_are_an_error(follow, tmp_path):
    """One value of one row, whether it is there at the beginning or comes later."""

    def at_the_beginning(rank):
        source = DatasetBuffer()
        source.append([{"n": i if i < 9 else i + rank} for i in range(10)])
        return epoch(load(source, 2, shared="copy", follow=follow))

    def later(rank):
        source = buffer(8)
        seen = []
        for batch in load(source, 2, shared="copy", follow=True):
            seen.append(batch.ids.tolist())
            if len(source) < 20:
                source.append([{"n": len(source) + 100 * rank}])
        return seen

    results = in_group(tmp_path / "now", 2, at_the_beginning)
    assert sum(isinstance(result, str) and "the ranks do not begin alike" in result for result in results) == 1
    if follow:
        results = in_group(tmp_path / "later", 2, later)
        assert any(
            isinstance(result, str) and "are not those of the rank that saw them first" in result for result in results
        )


def test_copies_without_a_group_are_compared_through_the_journal(tmp_path):
    """Ranks that only the environment names share a directory; each process made its own buffer."""

    def run(rank):
        source = DatasetBuffer()
        source.append([{"n": i + (rank if i == wrong else 0)} for i in range(10)])
        return epoch(load(source, 2, shared="copy", follow=True, journal=tmp_path / f"journal-{wrong}", run="r"))

    wrong = -1
    good = in_group(tmp_path / "good", 2, run, environment=True)
    wrong = 4
    bad = in_group(tmp_path / "bad", 2, run, environment=True)

    assert all_ids(good) == list(range(10))
    assert sum(isinstance(result, str) and "shared='copy' means" in result for result in bad) == 1


@pytest.mark.parametrize(("lengths", "ok"), [((10, 10), True), ((10, 12), False)])
def test_lists_are_compared_by_length(lengths, ok, tmp_path):
    """They are assumed to be equal; where ranks can compare, a longer one is noticed."""
    results = in_group(tmp_path, 2, lambda rank: epoch(load(rows(lengths[rank]), 2)))

    assert (all_ids(results) == list(range(10))) if ok else any("do not begin alike" in str(each) for each in results)


def test_epochs_that_differ_are_an_error(tmp_path):
    """One rank has set another epoch: the other reads rows that belong to both or to none."""

    def run(rank):
        loader = load(rows(8), 2)
        loader.set_epoch(3 - rank)
        return epoch(loader)

    results = in_group(tmp_path, 2, run)

    (message,) = [result for result in results if isinstance(result, str)]
    assert "epoch 3" in message
    assert "epoch 2" in message


def test_epochs_that_differ_are_seen_through_a_journal(tmp_path):
    """Two ranks begin one step in different epochs."""
    stream(8, tmp_path / "s").close()
    source = StreamStore.open(tmp_path / "s")
    ranks = [load(source, 2, rank=rank, world_size=2, journal=tmp_path / "journal") for rank in range(2)]
    ranks[0].set_epoch(1)
    next(iter(ranks[0]))
    with pytest.raises(Exception, match="rank 1 worker 0 begins epoch 0 at step 0, rank 0 worker 0 began epoch 1"):
        next(iter(ranks[1]))


# Rows of one's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("uneven", ["stop", "repeat", "empty"])
def test_ranks_with_rows_of_their_own_stay_in_step(uneven, sampled, tmp_path):
    """Equally many batches, ``len`` says how many; every row once unless it is repeated or left out, and counted."""
    n_rows = (4, 11)

    def run(rank):
        source = buffer(n_rows[rank])
        weights = {"weights": np.ones(n_rows[rank])} if sampled else {"shuffle": True}
        loader = load(source, 3, shared="own", uneven=uneven, **weights)
        length, first = len(loader), epoch(loader)
        return [length, first, loader.n_skipped, len(loader), epoch(loader)]

    results = in_group(tmp_path, 2, run)

    n_steps = 2 if uneven == "stop" else 4
    for length, first, _, again, second in results:
        assert length == again == len(first) == len(second) == n_steps
    short, long = results[0][1], results[1][1]
    sizes = {"stop": ([3, 1], [3, 3]), "repeat": ([3, 1, 3, 1], [3, 3, 3, 2]), "empty": ([3, 1, 0, 0], [3, 3, 3, 2])}
    assert ([len(batch) for batch in short], [len(batch) for batch in long]) == sizes[uneven]
    if not sampled:
        assert all_ids([short[:2]]) == [0, 1, 2, 3]
        if uneven == "repeat":
            assert all_ids([short[2:]]) == [0, 1, 2, 3]
        if uneven != "stop":
            assert all_ids([long]) == list(range(11))
        assert results[1][2] == (5 if uneven == "stop" else 0)


@pytest.mark.parametrize("uneven", ["stop", "repeat", "empty"])
def test_own_rows_resume_at_every_step(uneven, tmp_path):
    """Each rank from its own state, at the same world size; in the repeated part as well."""
    sources = [buffer(4), buffer(11)]

    def run(rank):
        made = lambda: load(sources[rank], 3, shuffle=True, shared="own", uneven=uneven)  # noqa: E731
        whole = made()
        states, batches = [json.dumps(whole.state_dict())], []
        for batch in whole:
            batches.append(batch.ids.tolist())
            states.append(json.dumps(whole.state_dict()))
        found = []
        for done, state in enumerate(states[:-1]):
            resumed = made()
            resumed.load_state_dict(json.loads(state))
            found.append([len(resumed), batches[:done] + epoch(resumed)])
        at_end = made()
        at_end.load_state_dict(json.loads(states[-1]))
        return [batches, found, at_end.epoch, epoch(at_end) == epoch(whole), states[1]]

    results = in_group(tmp_path / "ranks", 2, run)

    assert not [result for result in results if isinstance(result, str)]
    for batches, found, _, is_next, _ in results:
        assert all(each == [len(batches), batches] for each in found)
        assert is_next

    def swapped(rank):
        loader = load(sources[rank], 3, shuffle=True, shared="own", uneven=uneven)
        loader.load_state_dict(json.loads(results[1 - rank][4]))
        return len(loader)

    assert all("source=" in result for result in in_group(tmp_path / "swapped", 2, swapped))


def test_own_rows_are_refused_where_ranks_cannot_agree(tmp_path):
    """Following growth, without a process group, with nothing to repeat."""
    follow = in_group(tmp_path / "follow", 2, lambda rank: len(load(buffer(4), 2, shared="own", follow=True)) and 0)
    alone = in_group(tmp_path / "alone", 2, lambda rank: len(load(buffer(4), 2, shared="own")), environment=True)
    empty = in_group(
        tmp_path / "empty", 2, lambda rank: epoch(load(buffer(4 * rank), 2, shared="own", uneven="repeat"))
    )

    assert all("shared='own' with follow=True" in str(result) or "not known" in str(result) for result in follow)
    assert all("init_process_group" in result for result in alone)
    assert "nothing to repeat" in empty[0]
    with pytest.raises(ConfigError, match="uneven="):
        load(rows(3), uneven="pad")
    with pytest.raises(ConfigError, match="shared="):
        load(rows(3), shared="both")


# The journal of a group -------------------------------------------------------------------------------------------


def test_streams_that_grow_are_followed_through_the_group(tmp_path):
    """Without a directory: each step of the stream once, while another process appends; the keys do not pile up."""
    stream(30, tmp_path / "stream").close()

    def run(rank):
        source = StreamStore.open(tmp_path / "stream", mode="a" if rank == 0 else "r")
        store = dist.distributed_c10d._get_default_store()
        n_keys, seen = [], []
        for batch in load(source, 2, shuffle=True, follow=True, journal="group"):
            seen.append(batch.ids.tolist())
            n_keys.append(store.num_keys() if rank == 0 else 0)
            if rank == 0 and source.n_steps < 200:
                extend(source, 10)
            dist.barrier()  # as a training step does
        return [seen, max(n_keys) - min(n_keys)]

    results = in_group(tmp_path / "ranks", 2, run)

    assert all_ids(result[0] for result in results) == list(range(200))
    assert len(results[0][0]) == len(results[1][0])
    assert results[0][1] < 40


def test_a_group_that_is_not_there_is_an_error():
    """Several ranks need one; a single rank needs no agreement."""
    with pytest.raises(ConfigError, match=r"journal='group' on rank 0 of 2.*init_process_group"):
        load(rows(4), 2, rank=0, world_size=2, journal="group")
    assert epoch(load(buffer(4), 2, journal="group", follow=True)) == [[0, 1], [2, 3]]


def test_a_restarted_group_goes_on_from_the_checkpoint(tmp_path):
    """Killed at any step, on two ranks, going on with three: the store is new, the state says all; each row once."""
    stream(40, tmp_path / "stream").close()

    def first(rank):
        source = StreamStore.open(tmp_path / "stream", mode="a" if rank == 0 else "r")
        loader = load(source, 2, shuffle=True, follow=True, journal="group")
        seen = []
        for batch in islice(loader, 7):
            seen.append(batch.ids.tolist())
            if rank == 0:
                extend(source, 3)
            dist.barrier()
        return [seen, loader.state_dict()]

    before = in_group(tmp_path / "first", 2, first)
    assert before[0][1] == before[1][1]

    def second(rank):
        loader = load(StreamStore.open(tmp_path / "stream"), 2, shuffle=True, follow=True, journal="group")
        loader.load_state_dict(before[0][1])
        return epoch(loader)

    after = in_group(tmp_path / "second", 3, second)

    assert all_ids([*(each[0] for each in before), *after]) == list(range(61))


def test_ranks_with_different_states_are_refused(tmp_path):
    """A checkpoint of another step on one rank would repeat rows on it."""
    loader = load(rows(20), 2, shuffle=True)
    states = [loader.state_dict() for _ in islice(loader, 3)]

    def run(rank):
        resumed = load(rows(20), 2, shuffle=True)
        resumed.load_state_dict(states[rank])
        return epoch(resumed)

    results = in_group(tmp_path, 2, run)

    assert sum("do not begin alike" in str(result) and "step" in str(result) for result in results) == 1


def test_a_worker_process_reads_for_its_rank(tmp_path):
    """A forked worker of a DataLoader sees its parent's group, and does not talk to it."""

    def run(rank):
        inner = Loader(rows(12), 2, shuffle=True)
        return [batch["n"].tolist() for batch in DataLoader(inner, batch_size=None, num_workers=2)]

    assert all_ids(in_group(tmp_path, 2, run)) == list(range(12))


def test_a_store_that_outlives_a_restart_says_nothing_old(tmp_path, monkeypatch):
    """torchrun may keep its store when it restarts the ranks: what they agreed on before is void."""

    def run(rank):
        store = dist.distributed_c10d._get_default_store()
        monkeypatch.setattr(store.__class__, "delete_key", lambda *_: True)  # ranks were killed before they could
        found = []
        for attempt in range(2):
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
            monkeypatch.setattr("poolish.load.group._n_named", Counter())  # as in a new process
            loader = load(buffer(8 + attempt), 2, follow=True, shared="copy", journal="group")
            found.append(epoch(loader))
        return found

    results = in_group(tmp_path, 2, run)

    assert [all_ids(result[attempt] for result in results) for attempt in range(2)] == [list(range(8)), list(range(9))]


def test_a_worker_process_starts_where_the_loader_of_its_rank_is(tmp_path):
    """Not at a state that was loaded earlier: its rows have been read since."""
    first = load(rows(24), 2, rank=0, world_size=2)
    next(iter(first))
    state = first.state_dict()

    def run(rank):
        loader = load(rows(24), 2, rank=rank, world_size=2, output="torch")
        loader.load_state_dict(state)
        batches = iter(loader)
        next(batches), next(batches)
        inside = [int(batch.step) for batch in DataLoader(loader, batch_size=None, num_workers=1)]
        return [inside, [batch.step for batch in batches]]

    assert in_group(tmp_path, 2, run) == [[[3, 4, 5], [3, 4, 5]]] * 2


def test_a_group_that_ends_too_early_is_named(tmp_path):
    """A rank that still reads says that the store is gone, and how to keep it; torch says "connection reset"."""

    def run(rank):
        batches = iter(load(buffer(40), 2, follow=True, shared="copy"))
        next(batches)
        dist.barrier()
        dist.destroy_process_group()
        try:
            return [batch.ids.tolist() for batch in batches]
        finally:
            (tmp_path / "again").mkdir(exist_ok=True)
            init_group(tmp_path / "again", rank, 2)

    for result in in_group(tmp_path, 2, run):
        assert "ResumeError: Loader, rank " in result
        assert "keep the group until every rank has its last batch" in result


def test_a_group_may_end_and_begin_again(tmp_path):
    """A second group of the same ranks has a store of its own."""

    def run(rank):
        first = epoch(load(buffer(6), 2, shared="copy"))
        dist.barrier()
        dist.destroy_process_group()
        init_group(tmp_path / "again", rank, 2)
        return [first, epoch(load(buffer(6), 2, shared="copy"))]

    (tmp_path / "again").mkdir()
    results = in_group(tmp_path / "ranks", 2, run)

    for k in range(2):
        assert all_ids(result[k] for result in results) == list(range(6))


# Ranks that are not alike ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own",
    [
        lambda rank: {"seed": rank, "shuffle": True},
        lambda rank: {"shuffle": bool(rank)},
        lambda rank: {"batch_size": 2 + rank},
        lambda rank: {"follow": bool(rank)},
        lambda rank: {"batch_size": 1, "batches": [[0, 1], [2, 3 + rank]]},
        lambda rank: {"weights": np.ones(8), "seed": rank},
    ],
    ids=["seed", "shuffle", "batch_size", "follow", "batches", "weights"],
)
def test_ranks_with_other_settings_are_refused(own, tmp_path):
    """Each would read an order of its own: some rows twice, others never."""

    def run(rank):
        options = {"batch_size": 2, **own(rank)}
        return epoch(load(buffer(8), options.pop("batch_size"), shared="copy", **options))

    results = in_group(tmp_path, 2, run)

    assert sum("the ranks do not begin alike" in result for result in results if isinstance(result, str)) == 1


def test_ranks_with_own_rows_do_not_wait_for_one_that_failed(tmp_path):
    """Who waits hears the reason, at once; where one has no rows, all ranks say which."""
    differing = in_group(
        tmp_path / "differ", 2, lambda rank: epoch(load(buffer(8), 2 + rank, shared="own", uneven="repeat"))
    )
    idle = in_group(tmp_path / "idle", 2, lambda rank: epoch(load(buffer(4 * rank), 2, shared="own", uneven="empty")))

    assert all("batch_size" in result for result in differing)
    assert all("rank 0 of shared='own' came without a batch" in result for result in idle)


def test_what_an_idle_rank_makes_the_others_leave_out_is_counted(tmp_path, caplog):
    """With uneven="stop" the epoch is as short as the shortest, and says so where that is nothing at all."""

    def run(rank):
        loader = load(buffer(6 * rank), 2, shared="own", uneven="stop")
        return [epoch(loader), loader.n_skipped, "the epoch is empty: rank 0" in caplog.text]

    with caplog.at_level("WARNING", logger="poolish"):
        assert in_group(tmp_path, 2, run) == [[[], 0, True], [[], 6, True]]


def test_own_rows_of_tensor_parallel_peers_are_refused(tmp_path):
    """Peers of one data-parallel rank must read the same rows."""

    def run(rank):
        from torch.distributed.device_mesh import init_device_mesh

        peers = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        ranks = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
        found = [epoch(load(buffer(2), 1, shared="own", mesh=ranks))]
        for shared in ("own", None):
            with pytest.raises(ConfigError, match="several processes are rank 0 of 1" if shared else "shared='copy'"):
                len(load(buffer(4), 2, shared=shared, mesh=peers))
        return [*found, epoch(load(buffer(4 + rank), 2, shared="copy", mesh=peers))]

    results = in_group(tmp_path, 2, run)

    assert sum("do not begin alike" in str(result) for result in results) == 1  # the copies differ
    assert [result[0] for result in results if isinstance(result, list)] == [[[0], [1]]]


def test_a_batch_that_a_framework_left_does_not_hold_the_state(tmp_path):
    """One batch is asked for and never trained, in each of some epochs that are left early: the state goes on."""
    source = buffer(12)
    loader = load(source, 2, shuffle=True, acknowledge="explicit")
    late = None
    for number in range(3):
        batches = iter(loader)
        for _ in range(2):
            loader.mark_trained(next(batches))
        late = next(batches)  # read ahead
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (number, 4)

    iter(loader)
    assert loader.state_dict()["epoch"] == 3
    loader.mark_trained(late)  # trained after all
    with pytest.raises(ConfigError, match="marked already"):
        loader.mark_trained(late)
    with pytest.raises(ConfigError, match="no batch is in flight"):
        loader.mark_trained()
