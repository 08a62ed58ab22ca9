"""The example with the queue: what its provider masks, what its trainer saves, and that nothing is lost on the way."""

from __future__ import annotations

import doctest
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poolish import DataProviderBase, DatasetConsumer
from poolish.errors import ConfigError
from poolish.serve import SharedConfig, load_config
from poolish.serve.workspace import find_provider

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "char_diffusion"
DATASET = EXAMPLE / "data" / "char_diffusion"
CONFIG = "config/train_char_diffusion.py"

TINY = {
    "batch_size": 2,
    "block_size": 8,
    "n_layer": 1,
    "n_head": 1,
    "n_embd": 4,
    "dropout": 0.2,  # so that the random state matters
    "max_steps": 8,
    "evaluate_every": 4,
    "evaluate_batches": 1,
    "checkpoint_every": 3,
    "fill_in": ["Wh_n"],
}
STAGES = [{"until": 4, "mask_probability": 0.1}, {"until": 8, "mask_probability": 0.5}]


# Helpers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the example, in which queues and checkpoints may come to be."""
    return copy_to(tmp_path / "workspace")


@pytest.fixture(scope="module")
def example() -> Iterator[SimpleNamespace]:
    """The example's own modules, which import each other by their plain names."""
    names = ("checkpoint", "model", "train", "run")
    sys.path.insert(0, str(EXAMPLE))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in names:
            del sys.modules[name]


def copy_to(folder: Path) -> Path:
    """A copy with a short text, for speed."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("queue", "runs", "__pycache__"))
    text = (DATASET / "input.txt").read_text()
    (folder / "data/char_diffusion/input.txt").write_text(text[:20_000])
    return folder


def config_of(workspace: Path, **settings: Any) -> SharedConfig:
    return load_config(workspace / CONFIG, settings, workspace=workspace)


def provider_of(config: SharedConfig) -> DataProviderBase:
    return find_provider(config, DataProviderBase)(config)


def fill_queue(workspace: Path, n_batches: int = 20, **settings: Any) -> None:
    """A queue with enough batches for a short training, made without a second process."""
    with provider_of(config_of(workspace, **settings)) as provider:
        for split in ("train", "val"):
            for _ in range(n_batches):
                provider.publish(split)


def arguments(workspace: Path, **settings: Any) -> list[str]:
    return [str(workspace / CONFIG), *(f"--set={name}={value!r}" for name, value in settings.items())]


def log_of(workspace: Path) -> dict[tuple[int, str], dict[str, Any]]:
    """What the trainers noted for each step and each evaluation; later trainers overwrite earlier ones."""
    lines = map(json.loads, (workspace / "runs/char_diffusion/log.jsonl").read_text().splitlines())
    return {(line["step"], "loss" if "loss" in line else "val_loss"): line for line in lines}


def after_steps(example: SimpleNamespace, n: int, act: Callable[[], object]) -> Callable[..., float]:
    """The trainer's ``learn``, which does something else as well once it has taken ``n`` steps."""
    learn = example.train.Training.learn

    def learn_and_act(training: Any, batch: Any) -> float:
        loss = learn(training, batch)
        if training.step == n:
            act()
        return loss

    return learn_and_act


def end_process() -> None:
    raise SystemExit("killed")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def uninterrupted(example: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """The log of a training that nobody disturbed."""
    workspace = copy_to(tmp_path_factory.mktemp("uninterrupted") / "workspace")
    fill_queue(workspace, **TINY)
    assert example.train.main(arguments(workspace, **TINY)) == 0
    return log_of(workspace)


# The text -----------------------------------------------------------------------------------------------------


def test_text_is_the_one_whose_provenance_is_told():
    """What is shipped is byte for byte what PROVENANCE.md describes."""
    told = (DATASET / "PROVENANCE.md").read_text()
    text = (DATASET / "input.txt").read_bytes()

    [digest] = re.findall(r"sha256 of `input.txt`: `([0-9a-f]{64})`", told)

    assert hashlib.sha256(text).hexdigest() == digest
    assert f"{len(text):,} characters" in told
    assert f"{len(set(text))} of them different" in told
    assert not re.search(rb"gutenberg|copyright|http|etext", text, re.IGNORECASE)


# The provider -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "val"])
def test_exactly_the_masked_characters_have_targets(split: str):
    """With its targets put back, each window is a piece of the split's part of the text."""
    config = config_of(EXAMPLE)
    provider = provider_of(config)

    batch = provider.make_batch(split, 0)

    is_masked = batch["x"] == provider.meta["mask_token_id"]
    assert batch["x"].dtype == batch["y"].dtype == np.int64
    assert batch["x"].shape == (config.batch_size, config.block_size)
    assert ((batch["y"] != config.ignore_index) == is_masked).all()
    text = (DATASET / "input.txt").read_text()
    n_train = round(len(text) * (1 - config.val_fraction))
    part = text[:n_train] if split == "train" else text[n_train:]
    for row in np.where(is_masked, batch["y"], batch["x"]):
        assert "".join(provider.meta["vocabulary"][token] for token in row) in part


def test_masks_grow_by_stages():
    """The number of a train batch decides how much of it is masked; val is masked as at the end from the beginning."""
    provider = provider_of(config_of(EXAMPLE, stages=STAGES, mask_probability=0.9))

    def share(split: str, numbers: range) -> float:
        return float(np.mean([provider.make_batch(split, number)["y"] >= 0 for number in numbers]))

    # 4 batches of 32 x 64: a standard deviation is at most 0.0055.
    assert share("train", range(4)) == pytest.approx(0.1, abs=0.025)
    assert share("train", range(4, 8)) == pytest.approx(0.5, abs=0.025)
    assert share("train", range(8, 12)) == pytest.approx(0.9, abs=0.025)
    assert share("val", range(4)) == pytest.approx(0.9, abs=0.025)


def test_each_window_has_something_to_learn():
    """However little is masked, no window is without a masked character: the loss is always a number."""
    provider = provider_of(config_of(EXAMPLE, stages=[], mask_probability=1e-9))

    batch = provider.make_batch("train", 0)

    assert ((batch["y"] >= 0).sum(axis=1) == 1).all()


def test_batches_do_not_depend_on_restarts(tmp_path: Path):
    """A provider that is started anew for each batch makes the same ones, stages included."""
    contents = []
    for restarts, name in ((1, "patient"), (10, "hasty")):
        workspace = copy_to(tmp_path / name)
        for _ in range(restarts):
            fill_queue(workspace, 10 // restarts, stages=STAGES)
        with DatasetConsumer(workspace / "data/char_diffusion", output="numpy", timeout_s=0) as consumer:
            contents.append([array.tobytes() for _ in range(10) for array in consumer.get_batch("train")])

    assert contents[0] == contents[1]
    assert len(set(contents[0])) == 20


# The config ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"mask_probability": 1.5}, "mask_probability: should be less than or equal to 1, got float 1.5"),
        ({"mask_probability": "0.3"}, "mask_probability: should be a valid number"),
        ({"ignore_index": 3}, "ignore_index: should be less than 0, got int 3"),
        ({"stages": [{"until": 5}]}, "stages.0.mask_probability: missing"),
        ({"stages": STAGES[::-1]}, "stages: 'until' must grow from stage to stage, got [8, 4]"),
        ({"n_embd": 66}, "n_embd = 66: each of the 4 heads needs an even share; use a multiple of 8"),
        ({"fill_in": ["a" * 65]}, "has 65 characters, the model sees 64 (block_size)"),
        ({"mask_probabilty": 0.2}, "mask_probabilty: unknown, did you mean mask_probability?"),
    ],
)
def test_validator_names_the_mistake(settings: dict[str, Any], complaint: str):
    """A wrong setting stops provider and trainer alike before anything is made, and is told by name."""
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        config_of(EXAMPLE, **settings)


def test_validator_lists_all_mistakes_at_once():
    with pytest.raises(ConfigError, match="2 problems") as caught:
        config_of(EXAMPLE, n_layer=0, dropout=1.0)

    assert "n_layer" in str(caught.value)
    assert "dropout" in str(caught.value)


# The trainer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(1, TINY["max_steps"] + 1))
@pytest.mark.parametrize("end", [end_process, interrupt])
def test_resumed_training_has_the_very_same_losses(
    example: SimpleNamespace,
    workspace: Path,
    uninterrupted: dict[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
    n: int,
    end: Callable[[], None],
):
    """Wherever a training ends, the one that goes on takes the same batches to the same losses, bit by bit."""
    fill_queue(workspace, **TINY)
    with monkeypatch.context() as patched:
        patched.setattr(example.train.Training, "learn", after_steps(example, n, end))
        if end is interrupt:
            assert example.train.main(arguments(workspace, **TINY)) == 130
        else:
            with pytest.raises(SystemExit, match="killed"):
                example.train.main(arguments(workspace, **TINY))

    assert example.train.main(arguments(workspace, **TINY)) == 0

    expected = dict(uninterrupted)
    if end is interrupt and n == TINY["max_steps"]:
        del expected[n, "val_loss"]  # all steps were taken, so there was nothing left to do
    assert log_of(workspace) == expected
    seen = example.checkpoint.read_rest(workspace / "runs/char_diffusion/checkpoint.npz")["seen"]
    assert seen["train"] == [[0, TINY["max_steps"]]]


def test_checkpoint_counts_before_it_is_acknowledged(
    example: SimpleNamespace, workspace: Path, uninterrupted: dict[Any, Any], monkeypatch: pytest.MonkeyPatch
):
    """A trainer killed between writing a checkpoint and telling the queue goes on from that checkpoint all the same."""
    fill_queue(workspace, **TINY)
    with monkeypatch.context() as patched:
        patched.setattr(DatasetConsumer, "commit", lambda consumer, state: end_process())
        with pytest.raises(SystemExit, match="killed"):
            example.train.main(arguments(workspace, **TINY))

    assert example.train.main(arguments(workspace, **TINY)) == 0

    assert log_of(workspace) == uninterrupted
    assert (workspace / "runs/char_diffusion/log.jsonl").read_text().count('"number": 2,') == 1


def test_ctrl_c_ends_a_trainer_that_waits(
    example: SimpleNamespace, workspace: Path, uninterrupted: dict[Any, Any], capsys: pytest.CaptureFixture[str]
):
    """Where no batch comes, Ctrl-C does not wait for one; what was trained until then is kept."""
    fill_queue(workspace, 5, **TINY)
    timer = threading.Timer(1.0, interrupt)
    timer.start()

    code = example.train.main(arguments(workspace, **TINY))

    timer.join()
    assert code == 130
    assert "has step 5" in re.sub(r"\s+", " ", capsys.readouterr().out)
    fill_queue(workspace, 15, **TINY)
    assert example.train.main(arguments(workspace, **TINY)) == 0
    assert log_of(workspace) == uninterrupted


def test_checkpoint_of_another_model_is_refused(example: SimpleNamespace, workspace: Path):
    """A checkpoint that does not fit the config is named, not half loaded."""
    fill_queue(workspace, **TINY)
    assert example.train.main(arguments(workspace, **TINY)) == 0

    with pytest.raises(SystemExit, match=r"'n_embd': 4.*asks for.*'n_embd': 8.*move it away"):
        example.train.main(arguments(workspace, **TINY | {"n_embd": 8}))


def test_filling_leaves_what_is_known(example: SimpleNamespace):
    """Only masks are replaced, all of them, and never by a mask."""
    import torch

    torch.manual_seed(0)
    model = example.model.Filler(vocab_size=5, block_size=8, n_layer=1, n_head=1, n_embd=4, dropout=0.0)
    torch.nn.init.constant_(model.tell[1].bias[4:], 100.0)  # this model would like to say "mask" everywhere
    tokens = torch.tensor([0, 4, 2, 4, 4, 1])

    filled = example.model.fill(model, tokens, 4)

    is_known = tokens != 4
    assert (filled[is_known] == tokens[is_known]).all()
    assert (filled < 4).all()
    assert tokens.tolist() == [0, 4, 2, 4, 4, 1]


# The whole run ------------------------------------------------------------------------------------------------


def start_run(**settings: Any) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        str(EXAMPLE / "run.py"),
        *(f"--set={name}={value!r}" for name, value in settings.items()),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_whole_run_balances_its_books():
    """Provider and trainer, a kill in the middle, and in the end nothing is lost and nothing trained twice."""
    before = sorted(path for path in EXAMPLE.rglob("*") if "__pycache__" not in path.parts)

    process = start_run(**TINY | {"max_steps": 500, "evaluate_every": 100, "checkpoint_every": 100})
    said, _ = process.communicate(timeout=240)

    assert process.returncode == 0, said
    killed_after = int(re.findall(r"killed after step (\d+)", said)[0])
    saved = int(re.findall(r"going on after step (\d+)", said)[0])
    assert 250 <= killed_after < 500
    assert saved == killed_after // 100 * 100
    assert f"{killed_after - saved} steps of the killed trainer were taken again, 0 of them with another" in said
    assert "produced = 500 trained + 64 waiting, 0 lost, 0 twice" in said
    assert "Wh_n" in said
    assert sorted(path for path in EXAMPLE.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_ctrl_c_ends_both_processes():
    """Ctrl-C in the middle of it leaves no process and no folder behind."""
    process = start_run(**TINY | {"max_steps": 1_000_000, "checkpoint_every": 1_000_000})
    said = ""
    for line in process.stdout:
        said += line
        if "val loss" in line:
            break
    children = children_of(process.pid)
    process.send_signal(signal.SIGINT)

    said += process.communicate(timeout=120)[0]

    assert process.returncode == 130, said
    assert len(children) == 2
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    [checkpoint] = re.findall(r"Interrupted: (\S+checkpoint\.npz)", said)
    assert not Path(checkpoint).exists()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_wrong_setting_ends_the_run_with_a_word(example: SimpleNamespace, capsys: pytest.CaptureFixture[str]):
    """A mistake in the config is told as such, before any process is started."""
    code = example.run.main(["--set", "mask_probability=2.0"])

    assert code == 1
    assert "mask_probability: should be less than or equal to 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("trained", "waiting", "lost", "twice"),
    [
        ([(0, 6)], range(6, 10), 0, 0),
        ([(0, 6)], range(7, 10), 1, 0),
        ([(0, 6)], range(5, 10), 0, 1),
        ([(0, 3), (2, 6)], range(6, 10), 0, 1),
        ([(0, 2), (4, 6)], range(6, 10), 2, 0),
    ],
)
def test_books_find_what_is_wrong(
    example: SimpleNamespace, trained: list[tuple[int, int]], waiting: range, lost: int, twice: int
):
    """A batch that is missing and one that came twice are found, also where the sums agree."""
    books = example.run.balance(10, trained, waiting)

    assert (books.lost, books.twice) == (lost, twice)
    assert books.are_balanced == (lost == twice == 0)


@pytest.mark.parametrize("name", ["train", "run"])
def test_examples_in_docstrings_hold(example: SimpleNamespace, name: str):
    result = doctest.testmod(getattr(example, name))

    assert result.attempted > 0
    assert result.failed == 0
