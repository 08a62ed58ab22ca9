"""Runs: a journal belongs to one training run, whose id states carry; another run is refused before it reads a row."""

from __future__ import annotations

import json
import pickle
from itertools import chain, islice

import pytest

from poolish import Loader
from poolish.errors import ConfigError, ResumeError
from tests.faults import children, ended
from tests.load.loaders import buffer, extend, going_on, ids, rows, saved


@pytest.fixture(autouse=True)
def outside_of_torchrun(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)


def load(dataset, batch_size=2, **options):
    return Loader(dataset, batch_size, **{"output": "numpy", "shuffle": True, "follow": True, **options})


def files_of(journal):
    return {path.name: path.read_bytes() for path in journal.iterdir()}


def test_a_new_run_on_the_journal_of_another_is_refused(tmp_path):
    """Its decisions are those of other rows: reading by them would silently leave out what came since."""
    source = buffer(300)
    assert len(ids(load(source, 50, journal=tmp_path / "journal"))) == 300
    extend(source, 200)
    before = files_of(tmp_path / "journal")

    new = load(source, 50, journal=tmp_path / "journal")
    for _ in range(2):
        with pytest.raises(ResumeError, match=r"belongs to run '\w+', this is run '\w+'; .*pass run='\w+', .*new dir"):
            iter(new)

    assert files_of(tmp_path / "journal") == before
    assert len(ids(load(source, 50, journal=tmp_path / "new"))) == 500


def test_the_same_run_replays_its_journal(tmp_path):
    """By name, or from one of its states: the batches that it saw come again."""
    source, journal = buffer(20), tmp_path / "journal"
    first = load(source, journal=journal, run="ppo-7")
    running = iter(first)
    begun, state = [batch.ids.tolist() for batch in islice(running, 3)], saved(first)
    rest = [batch.ids.tolist() for batch in running]

    by_name, by_state = load(source, journal=journal, run="ppo-7"), load(source, journal=journal)
    by_state.load_state_dict(state)

    assert [batch.ids.tolist() for batch in by_name] == begun + rest
    assert [batch.ids.tolist() for batch in by_state] == rest
    assert state["run"] == saved(by_state)["run"] == "ppo-7"


def test_an_unnamed_run_has_an_id_in_its_state(tmp_path):
    """Also before its first batch, so that the state of the very beginning resumes."""
    source, journal = buffer(8), tmp_path / "journal"
    loader = load(source, journal=journal)
    start = saved(loader)
    list(loader)
    resumed = load(source, journal=journal)
    resumed.load_state_dict(start)

    assert sorted(ids(resumed)) == list(range(8))
    assert start["run"] == saved(loader)["run"] == saved(resumed)["run"]
    assert start["run"] != saved(load(source, journal=journal))["run"]


def test_a_state_of_another_run_than_the_one_named_is_refused(tmp_path):
    """run= and the state contradict each other: nothing changes."""
    source = buffer(8)
    one, two = load(source, run="one"), load(source, run="two")
    next(iter(one))
    before = saved(two)

    with pytest.raises(ResumeError, match="belongs to run 'one', run= says 'two'"):
        two.load_state_dict(saved(one))

    assert saved(two) == before


def test_a_loader_without_a_journal_needs_no_run(monkeypatch):
    """Its state carries the id where it is known."""
    source = buffer(8)
    plain, named = load(source), load(source, run="ppo-7")

    assert sorted(ids(plain)) == sorted(ids(named)) == list(range(8))
    assert (saved(plain)["run"], saved(named)["run"]) == (None, "ppo-7")
    assert sum(len(ids(load(source, rank=rank, world_size=2))) for rank in range(2)) == 8
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-3")
    assert saved(load(source))["run"] == "job-3"


@pytest.mark.parametrize("run", ["", "../x", "a b", 7, "x" * 129])
def test_a_run_has_a_name(run):
    """What could not be part of a path or a message is refused in the constructor."""
    with pytest.raises(ConfigError, match="run"):
        load(rows(3), run=run)


def test_several_ranks_share_a_run_by_name_or_are_refused(tmp_path, monkeypatch):
    """Each alone would create an id of its own; the constructor asks for nothing yet."""
    source = buffer(8)

    def both(**options):
        return [load(source, rank=rank, world_size=2, **options) for rank in range(2)]

    for loader in both(journal=tmp_path / "none"):
        with pytest.raises(ConfigError, match="2 ranks share no run id; pass the same run='NAME'"):
            iter(loader)
    assert sorted(ids(chain(*both(journal=tmp_path / "named", run="ppo-7")))) == list(range(8))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job-3")
    assert sorted(ids(chain(*both(journal=tmp_path / "torchrun")))) == list(range(8))
    assert json.loads((tmp_path / "torchrun" / "order.json").read_text())["run"] == "job-3"


def test_ranks_of_a_process_group_agree_on_a_run(tmp_path):
    """Through its store, also where the loader was made before the group: the first iter() asks."""
    source = rows(12)

    def rank_of_two(rank):
        import torch.distributed as dist

        loader = load(source, rank=rank, world_size=2, journal=tmp_path / "journal")
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=rank, world_size=2)
        (tmp_path / f"ids-{rank}").write_text(json.dumps(ids(loader)))
        (tmp_path / f"run-{rank}").write_text(saved(loader)["run"])
        dist.barrier()
        dist.destroy_process_group()

    with children(lambda: rank_of_two(0), lambda: rank_of_two(1)) as pids:
        assert [ended(pid) for pid in pids] == [0, 0]
        pids.clear()

    seen = [id_ for rank in range(2) for id_ in json.loads((tmp_path / f"ids-{rank}").read_text())]
    assert sorted(seen) == list(range(12))
    assert (tmp_path / "run-0").read_text() == (tmp_path / "run-1").read_text()


def test_an_audit_needs_no_run(tmp_path):
    """It only reads: the journal stays whose it was, and one that nobody claimed stays free."""
    source, journal = buffer(8), tmp_path / "journal"
    loader = load(source, journal=journal)
    list(loader)
    before = files_of(journal)

    audit = load(source, journal=journal).audit(0, 3)
    load(source, journal=tmp_path / "fresh").audit(0, 3)

    assert audit.is_clean
    assert files_of(journal) == before
    assert sorted(ids(load(source, journal=tmp_path / "fresh"))) == list(range(8))


def test_copies_of_a_loader_are_of_its_run(tmp_path):
    """As the worker processes of torch's DataLoader are, forked or spawned: before the first batch, and after."""
    source, journal = rows(8), tmp_path / "journal"
    loader = load(source, journal=journal)
    early = pickle.loads(pickle.dumps(loader))
    first = next(iter(early)).ids.tolist()
    late = pickle.loads(pickle.dumps(early))

    assert next(iter(loader)).ids.tolist() == first
    assert sorted(first + ids(late)) == list(range(8))
    assert saved(loader)["run"] == saved(early)["run"] == saved(late)["run"]


def test_runs_of_one_process_do_not_share_decisions():
    """Two runs by name over one buffer, whose ranks enter in turns: each run has all rows."""
    source = buffer(8)
    one, other = ([load(source, 1, rank=r, world_size=2, run=run) for r in range(2)] for run in ("one", "other"))
    seen = {0: [], 1: []}
    for run, rank in ((0, 0), (1, 0), (1, 1), (0, 1)):  # rank 0 of one run, then both of the other
        seen[run] += ids([next(going_on((one, other)[run][rank]))])
        extend(source, 3)
    for run, loaders in enumerate((one, other)):
        for loader in loaders:
            seen[run] += ids(going_on(loader))

    assert sorted(seen[0]) == sorted(seen[1]) == list(range(20))


# Files of 0.1.0 -----------------------------------------------------------------------------------------------------

STATE_1 = (
    '{"format": "poolish loader", "version": 1, "source": "", "choice": "", "seed": 7, "shuffle": true, '
    '"batches": false, "epoch": 0, "step": 2, "position": 4, "fixed_by": null, "order": {"block": 0, "offset": 4, '
    '"parts": ";", "ends": "", "spans": "0,8", "dead": "", "end": false, "highest": ""}, "check": "649398b0b9b2b798"}'
)
ORDER_1 = (
    '{"format": "poolish journal", "version": 1, "block_rows": 1024, "source": "", "choice": "", "seed": 7, '
    '"shuffle": true, "batches": false, "follow": true}'
)
LINES_1 = (
    '{"run":{"who":"rank 0 worker 0","epoch":0,"step":0,"position":0,"block":0,"offset":0,"parts":";","ends":[],'
    '"seen":null,"world_size":1,"batch_size":2,"drop_last":false}} f3280ea9af8ace69\n'
    '{"block":0,"before":"2d06800538d394c2","spans":"0,8","dead":"","end":false} 4309771ee1bb3ebe\n'
    '{"block":1,"before":"664f427c6b2c4bea","spans":"0,8","dead":"","end":true} 249027287195865c\n'
)


def old_journal(folder, lines=LINES_1):
    folder.mkdir()
    (folder / "order.json").write_text(ORDER_1)
    if lines:
        (folder / "epoch-0.jsonl").write_text(lines)
    return folder


def test_a_state_of_0_1_0_resumes():
    """Version 1 knows no run and no dataset's state; the rest is the same."""
    loader = load(rows(8), seed=7)
    loader.load_state_dict(json.loads(STATE_1))

    assert [batch.ids.tolist() for batch in loader] == [[1, 7], [2, 3]]


def test_a_journal_of_0_1_0_goes_on_from_a_state_of_0_1_0(tmp_path):
    """It belongs to that run from then on."""
    journal = old_journal(tmp_path / "journal")
    loader = load(rows(8), seed=7, journal=journal)
    loader.load_state_dict(json.loads(STATE_1))
    assert [batch.ids.tolist() for batch in loader] == [[1, 7], [2, 3]]

    with pytest.raises(ResumeError, match=f"belongs to run '{saved(loader)['run']}'"):
        iter(load(rows(8), seed=7, journal=journal))
    assert load(rows(8), seed=7, journal=journal).audit(0, 3).is_clean


def test_a_journal_of_0_1_0_without_a_state_is_refused(tmp_path):
    """Nobody can say that this is the run it is of, not even by a name; one that holds nothing is free."""
    journal = old_journal(tmp_path / "journal")

    for run in (None, "ppo-7"):
        with pytest.raises(ResumeError, match=r"written by poolish 0\.1\.0.*load_state_dict.*new directory"):
            iter(load(rows(8), seed=7, journal=journal, run=run))
    assert load(rows(8), seed=7, journal=journal).audit(0, 3).is_clean
    assert sorted(ids(load(rows(8), seed=7, journal=old_journal(tmp_path / "empty", "")))) == list(range(8))


def test_a_journal_of_a_later_version_is_refused(tmp_path):
    """By name, before anything is read."""
    journal = old_journal(tmp_path / "journal")
    (journal / "order.json").write_text(ORDER_1.replace('"version": 1', '"version": 3'))

    with pytest.raises(ConfigError, match="version 3; this poolish reads versions 1 and 2"):
        load(rows(8), seed=7, journal=journal)


def test_a_journal_is_a_local_directory():
    """A URL would silently become a directory ``s3:``."""
    for url in ("s3://bucket/journal", "gs://bucket/journal"):
        with pytest.raises(ConfigError, match=r"journal '\w+://bucket/journal': must be a local path"):
            load(rows(8), journal=url)
