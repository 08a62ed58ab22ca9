"""The shared config: read safely, layered, and everything wrong with it said at once."""

from __future__ import annotations

import hashlib
import os
import py_compile
import sys
from pathlib import Path

import pydantic
import pytest

from poolish.errors import ConfigError
from poolish.serve.config import SharedConfig, check_config, config_from_command_line, load_config
from poolish.serve.workspace import names_in, read_source

ENOUGH = {"dataset": "char", "batch_size": 32, "block_size": 256}
PYTHON = "dataset = 'char'\nbatch_size = 32\nblock_size = 256\n"
TOML = 'dataset = "char"\nbatch_size = 32\nblock_size = 256\n'


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with the dataset char and an empty folder config; the current directory is elsewhere."""
    folder = tmp_path / "workspace"
    (folder / "data" / "char" / "config").mkdir(parents=True)
    (folder / "config").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o644)
    return path


def problems(caught: pytest.ExceptionInfo[ConfigError]) -> list[str]:
    """The lines below the first, which says how many there are."""
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("has a problem:" if len(lines) == 1 else f"has {len(lines)} problems:")
    return [line.removeprefix("  ") for line in lines]


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file belong to somebody else: really where we may, else by being somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 4242, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)


# What a config is ---------------------------------------------------------------------------------------------


def test_three_settings_are_enough():
    """Everything else has a default, in plain units."""
    assert check_config(ENOUGH).names() == {
        "dataset": "char",
        "batch_size": 32,
        "block_size": 256,
        "seed": 0,
        "splits": ("train", "val"),
        "max_backlog": 64,
        "max_backlog_bytes": 8 * 2**30,
        "min_free_bytes": 64 * 2**20,
        "durability": "process",
        "max_batches": None,
    }


def test_sizes_and_splits_are_written_as_people_write_them():
    """Sizes with a unit become bytes, a list becomes a tuple."""
    config = check_config({**ENOUGH, "max_backlog_bytes": "1.5gb", "min_free_bytes": 0, "splits": ["train", "test"]})

    assert (config.max_backlog_bytes, config.min_free_bytes, config.splits) == (3 * 2**29, 0, ("train", "test"))


def test_settings_that_nobody_knows_are_attributes_and_keep_their_value():
    """The provider gets the object that the config made, not a copy or a cast."""
    stages = [{"mask": 0.1}, {"mask": 0.9}]

    config = check_config({**ENOUGH, "stages": stages, "ignore_index": -1})

    assert config.stages is stages
    assert config.names()["stages"] is stages
    assert config.ignore_index == -1


def test_a_config_does_not_change():
    """Both sides see the same settings during the whole run."""
    config = check_config({**ENOUGH, "lr": 0.1})

    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.batch_size = 64
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        config.lr = 0.2


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("dataset", "../secrets", "name '../secrets': use 1 to 128 of A-Z a-z 0-9 . _ - and no dot at the start"),
        ("dataset", 7, "should be a valid string, got int 7"),
        ("batch_size", 0, "should be greater than or equal to 1, got int 0"),
        ("batch_size", "32", "should be a valid integer, got str '32'"),
        ("batch_size", True, "should be a valid integer, got bool True"),
        ("block_size", 256.0, "should be a valid integer, got float 256.0"),
        ("seed", -1, "should be greater than or equal to 0, got int -1"),
        ("seed", 2**64, f"should be less than {2**64}, got int {2**64}"),
        ("splits", [], "should name at least one split, and each once, got list []"),
        ("splits", ["train", "train"], "should name at least one split, and each once, got list ['train', 'train']"),
        ("splits", ["train", "a/b"], "split 'a/b': use 1 to 128 of A-Z a-z 0-9 . _ - and no dot at the start"),
        ("splits", "train", "should be a valid tuple, got str 'train'"),
        ("splits", {"train"}, "should be a valid tuple, got set {'train'}"),
        ("max_backlog", 0, "should be greater than or equal to 1, got int 0"),
        ("max_backlog_bytes", 0, "should be greater than or equal to 1, got int 0"),
        (
            "min_free_bytes",
            "lots",
            'size \'lots\': write a number of bytes from 0, or text such as "64mb" or "1.5 GiB"',
        ),
        ("durability", "none", "should be 'process' or 'power', got str 'none'"),
        ("durability", "x" * 500, f"should be 'process' or 'power', got str '{'x' * 56}..."),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(name, value, rule):
    """One line says which setting, what it should be, and what it is; nothing is cast to fit."""
    with pytest.raises(ConfigError) as caught:
        check_config({**ENOUGH, name: value})

    assert problems(caught) == [f"{name}: {rule}"]


def test_all_problems_are_listed_at_once():
    """Missing, wrong, misspelt: one error, so that one correction is enough."""
    with pytest.raises(ConfigError) as caught:
        check_config({"bacth_size": 32, "block_size": 0, "seed": "x", "durabilty": "power", "lr": 0.1})

    assert [line.split(":")[0] for line in problems(caught)] == [
        "bacth_size",
        "durabilty",
        "dataset",
        "batch_size",
        "block_size",
        "seed",
    ]


@pytest.mark.parametrize("name", ["copy", "json", "names", "workspace", "sha256", "dataset_path", "model_dump"])
def test_a_name_that_the_config_object_needs_is_refused(name):
    """Else ``config.copy`` would be a method where the user set a number."""
    with pytest.raises(ConfigError) as caught:
        check_config({**ENOUGH, name: 1})

    assert problems(caught) == [f"{name}: taken by the config object itself; choose another name"]


@pytest.mark.parametrize("name", ["learning-rate", "a b", "lambda", "_hidden", "2nd", "", 7])
def test_a_name_that_code_could_not_use_is_refused(name):
    """Settings become attributes and globals of the provider."""
    with pytest.raises(ConfigError) as caught:
        check_config({**ENOUGH, name: 1})

    assert problems(caught) == [
        f"{name}: not a name that a provider could use; write letters, digits and _, a letter first"
    ]


# Near misses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("bacth_size", "batch_size"),
        ("batchsize", "batch_size"),
        ("batchSize", "batch_size"),
        ("BATCH_SIZE", "batch_size"),
        ("batch_sizes", "batch_size"),
        ("batch_sze", "batch_size"),
        ("battch_size", "batch_size"),
        ("betch_size", "batch_size"),
        ("blok_size", "block_size"),
        ("dataest", "dataset"),
        ("datasets", "dataset"),
        ("data_set", "dataset"),
        ("seeds", "seed"),
        ("sede", "seed"),
        ("split", "splits"),
        ("spilts", "splits"),
        ("max_baklog", "max_backlog"),
        ("max_backlog_byte", "max_backlog_bytes"),
        ("min_fre_bytes", "min_free_bytes"),
        ("durablity", "durability"),
    ],
)
def test_a_near_miss_of_a_known_name_is_an_error(name, meant):
    """A slip would otherwise pass to the provider, and the run would go on with the default."""
    with pytest.raises(ConfigError) as caught:
        check_config({**ENOUGH, name: 1})

    assert problems(caught) == [
        f"{name}: unknown, did you mean {meant}? A setting of your own is declared in config/validator.py"
    ]


#: From configs of other projects.
OTHER_NAMES = """
    lr n_layer n_head d_head n_embd dropout bias max_iters max_lr min_lr eval_interval eval_iters log_interval
    mask_probability ignore_index vocab_size patch_size val_batch_size eval_batch_size micro_batch_size batch
    dataset_dir dataset_name data_dir data_seed seed_offset speed feed beta1 beta2 weight_decay grad_clip
    warmup_iters lr_decay_iters device dtype compile backend wandb_log wandb_project out_dir init_from
    gradient_accumulation_steps train_split match_rate window_size hidden_size image_size chunk_size context_length
    block size stage stages max_tokens max_steps num_workers free_bytes max_free_bytes backlog min_backlog durable
    duration mode split_ratio stride shuffle model_name batch_size2
"""


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_other_names_pass_through(name):
    """Names of their own are nobody's slip."""
    assert check_config({**ENOUGH, name: 1}).names()[name] == 1


def test_names_of_two_settings_may_resemble_each_other():
    """Within one file nobody is the misspelling of the other."""
    pairs = {"encoder_layers": 1, "decoder_layers": 2, "max_length": 3, "min_length": 4, "node": 5, "mode": 6}

    assert check_config({**ENOUGH, **pairs}).names().items() >= pairs.items()


def test_names_known_to_the_caller_are_compared_too():
    """And are no misspellings themselves."""
    assert check_config({**ENOUGH, "split": 1}, known=["split"]).split == 1
    with pytest.raises(ConfigError, match="mask_probabilty: unknown, did you mean mask_probability"):
        check_config({**ENOUGH, "mask_probabilty": 1}, known=["mask_probability"])


# Files --------------------------------------------------------------------------------------------------------


def test_python_and_toml_say_the_same(tmp_path):
    """Same settings, same config; the checksum is that of the file."""
    python = write(tmp_path / "config.py", PYTHON + "stages = {'first': [1, 2.5, True]}")
    toml = write(tmp_path / "config.toml", TOML + "[stages]\nfirst = [1, 2.5, true]")

    assert load_config(python).names() == load_config(toml).names()
    assert load_config(toml).stages == {"first": [1, 2.5, True]}
    assert load_config(python).sha256 == hashlib.sha256(python.read_bytes()).hexdigest()
    assert check_config(ENOUGH).sha256 is None


def test_what_a_python_config_is_written_with_is_no_setting(tmp_path):
    """Modules, functions, classes, and names with an underscore stay in the file."""
    path = write(
        tmp_path / "config.py",
        "from __future__ import annotations\nimport math\nfrom math import sqrt, pi\nfrom pathlib import Path\n"
        "from typing import Optional\nfrom dataclasses import dataclass\n" + PYTHON + "_width: Optional[int] = 8\n"
        "def double(x): return 2 * x\n@dataclass\nclass Stage:\n    rate: float\n"
        "width, first, root = double(_width), Stage(0.5), Path('.')\n",
    )

    extra = load_config(path).model_extra

    assert set(extra) == {"pi", "width", "first", "root"}
    assert (extra["width"], extra["first"].rate) == (16, 0.5)


def test_a_python_config_is_read_in_its_own_encoding(tmp_path):
    """As Python itself would."""
    path = write(tmp_path / "config.py", "")
    path.write_bytes(b"# coding: latin-1\n" + PYTHON.encode() + "title = 'naïve'".encode("latin-1"))

    assert load_config(path).title == "naïve"


def test_an_error_in_a_python_config_keeps_its_type_and_gains_its_place(tmp_path):
    """The traceback ends with the file and line, and nothing of the file is left loaded."""
    path = write(tmp_path / "broken.py", PYTHON + "def divide():\n    return 1 / 0\nlr = divide()\n")

    with pytest.raises(ZeroDivisionError) as caught:
        load_config(path)

    assert caught.value.__notes__ == [f"while running {path}, line 5"]
    assert "poolish_config_broken" not in sys.modules


def test_a_python_config_that_does_not_parse_names_the_line(tmp_path):
    """A syntax error is one of the file, not of poolish."""
    path = write(tmp_path / "config.py", PYTHON + "lr = = 1")

    with pytest.raises(SyntaxError) as caught:
        load_config(path)

    assert caught.value.__notes__ == [f"while running {path}, line 4"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"dataset = ", ": no TOML that a config can be in: Invalid value"),
        (b"a = 1\na = 2", ": no TOML that a config can be in: Cannot overwrite"),
        (b"a = '\xff'", ": a config is text in UTF-8"),
        (b"a = " + b"[" * 50_000, ", line 1, column 69: no TOML that a config can be in: nested more than 64 deep"),
        (b"a." * 100 + b"a = 1", ", line 1, column 130: no TOML that a config can be in: nested more than 64 deep"),
    ],
)
def test_broken_toml_is_a_config_error(tmp_path, source, reason):
    """Which names the file. A key of many parts is refused unparsed: 100,000 of them would take minutes."""
    path = tmp_path / "config.toml"
    path.write_bytes(source)

    with pytest.raises(ConfigError, match=rf"config\.toml{reason}"):
        load_config(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, r"cannot be read \(No such file or directory\); check the path"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: os.mkfifo(path, 0o600), "not a regular file"),
        (lambda path: path.write_text("#" * 1_000_001), "more than 1,000,000 bytes"),
    ],
)
@pytest.mark.parametrize("name", ["config.py", "config.toml"])
def test_what_is_no_small_regular_file_is_refused(tmp_path, make, reason, name):
    """At once: a pipe is not waited for."""
    make(tmp_path / name)

    with pytest.raises(ConfigError, match=f"{name}: {reason}"):
        load_config(tmp_path / name)


@pytest.mark.parametrize("name", ["config.yaml", "config.pyc", "config", "config.PY"])
def test_other_kinds_of_file_are_refused(tmp_path, name):
    """By name, before anything is read."""
    with pytest.raises(ConfigError, match=r"a config is a \.py or \.toml file"):
        load_config(write(tmp_path / name, PYTHON))


# Security -----------------------------------------------------------------------------------------------------

MARK = "open({!r}, 'w').close()\n"


def code_files(workspace: Path) -> dict[str, Path]:
    """Each place in a workspace whose code is run when a config is loaded."""
    return {
        "config": workspace / "config" / "train.py",
        "defaults": workspace / "data" / "char" / "config" / "base.py",
        "validator": workspace / "config" / "validator.py",
    }


def workspace_with_mark(workspace: Path, which: str) -> tuple[Path, Path, Path]:
    """A config that loads, with one file in it that leaves a mark when it is run: the config, the file, the mark."""
    mark = workspace / "was_run"
    path = code_files(workspace)[which]
    config = path if which == "config" else write(workspace / "config" / "train.toml", TOML)
    body = {"config": PYTHON, "defaults": "lr = 1\n", "validator": "def validate(config): ...\n"}[which]
    write(path, MARK.format(str(mark)) + body)
    return config, path, mark


@pytest.mark.parametrize("which", ["config", "defaults", "validator"])
def test_code_that_everyone_may_write_is_not_run(workspace, which):
    """The error says what to do, and after that it is run."""
    config, path, mark = workspace_with_mark(workspace, which)
    path.chmod(0o646)

    with pytest.raises(ConfigError, match=f"everyone may write to it; look at what it says, then chmod o-w {path}"):
        load_config(config)
    assert not mark.exists()

    path.chmod(0o644)
    load_config(config)
    assert mark.exists()


@pytest.mark.parametrize("which", ["config", "defaults", "validator"])
def test_code_of_another_user_is_not_run(workspace, monkeypatch, which):
    """Whoever owns a file can change it after it was looked at."""
    config, path, mark = workspace_with_mark(workspace, which)
    give_away(path, monkeypatch)

    with pytest.raises(ConfigError, match=r"must be yours .* but user id \d+ owns it; .*copy it or chown"):
        load_config(config)

    assert not mark.exists()


def test_a_link_is_judged_by_what_it_leads_to(workspace, monkeypatch):
    """A link of one's own to one's own file is fine, one to somebody else's file is not."""
    target = write(workspace / "shared.py", PYTHON)
    link = workspace / "config" / "train.py"
    link.symlink_to(target)
    assert load_config(link).batch_size == 32

    give_away(target, monkeypatch)

    with pytest.raises(ConfigError, match="must be yours"):
        load_config(link)


def test_code_of_root_is_run(workspace, monkeypatch):
    """An administrator may install a config for everyone."""
    path = write(workspace / "config" / "train.py", PYTHON)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4242)
        facts = os.stat(path)
        patch.setattr(os, "fstat", lambda fd: os.stat_result((*facts[:4], 0, *facts[5:])))
        config = load_config(path)

    assert config.batch_size == 32


def test_toml_runs_no_code(workspace):
    """Whoever wrote it and whatever it says, it is data; so nobody's permissions are asked about either."""
    mark = workspace / "was_run"
    text = TOML + f"lr = {MARK.format(str(mark)).strip()!r}\n"
    path = write(workspace / "config" / "train.toml", text)
    path.chmod(0o666)

    assert load_config(path).lr == MARK.format(str(mark)).strip()
    assert not mark.exists()


def test_overrides_run_no_code(tmp_path):
    """A value on the command line is a literal or text."""
    mark = tmp_path / "was_run"
    path = write(tmp_path / "config.toml", TOML)

    config = load_config(path, [f"lr=open({str(mark)!r}, 'w')"])

    assert config.lr == f"open({str(mark)!r}, 'w')"
    assert not mark.exists()


def test_no_bytecode_is_left(workspace):
    """No folder ``__pycache__`` appears beside any of the files."""
    for which in code_files(workspace):
        load_config(workspace_with_mark(workspace, which)[0])

    assert list(workspace.rglob("__pycache__")) == []


def test_no_bytecode_is_read(workspace):
    """What runs is what the file says, whatever somebody has put into ``__pycache__``."""
    path = write(workspace / "config" / "train.py", PYTHON.replace("32", "64"))
    py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    write(path, PYTHON)

    assert load_config(path).batch_size == 32


def test_what_is_run_is_what_was_looked_at(tmp_path):
    """Even if the file changes between the two."""
    path = write(tmp_path / "config.py", "lr = 1")

    source = read_source(path)
    write(path, "lr = 2")

    assert names_in(path, source) == {"lr": 1}


def test_what_is_run_is_what_was_hashed(tmp_path):
    """Even if the file changes while it runs."""
    path = tmp_path / "config.py"
    write(path, f"from pathlib import Path\nPath({str(path)!r}).write_text('batch_size = 1')\n" + PYTHON)
    before = path.read_bytes()

    config = load_config(path)

    assert config.batch_size == 32
    assert config.sha256 == hashlib.sha256(before).hexdigest()


# Overrides ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-0.5", -0.5),
        ("1e-4", 1e-4),
        ("true", True),
        ("false", False),
        ("True", True),
        ("None", None),
        ("adam", "adam"),
        ("'7'", "7"),
        ('"a b"', "a b"),
        ("", ""),
        ("a=b", "a=b"),
        (" 8 ", 8),
        (" true ", True),
        ("[1, 'x']", [1, "x"]),
        ("{'a': 1}", {"a": 1}),
        ("{[]: 1}", "{[]: 1}"),
        ("2024-10-11", "2024-10-11"),
        ("007", "007"),
        ("(" * 5_000, "(" * 5_000),
    ],
)
def test_a_value_on_the_command_line_is_a_literal_or_text(tmp_path, text, value):
    """Numbers are numbers, and what is no literal is not bent into one."""
    config = load_config(write(tmp_path / "config.toml", TOML), [f"other={text}"])

    assert config.other == value
    assert type(config.other) is type(value)


def test_overrides_win_and_the_last_one_most(tmp_path):
    """As texts or as a mapping."""
    path = write(tmp_path / "config.py", PYTHON + "lr = 0.1")

    texts = load_config(path, ["batch_size=8", "splits=['train']", "lr=1", "lr=2"])
    mapping = load_config(path, {"batch_size": 8, "splits": ["train"], "lr": 2})

    assert texts.names() == mapping.names()
    assert (texts.batch_size, texts.block_size, texts.splits, texts.lr) == (8, 256, ("train",), 2)


def test_a_misspelt_override_is_an_error_although_the_right_name_is_given(tmp_path):
    """Also if the name is one of the user's own, from the config."""
    path = write(tmp_path / "config.py", PYTHON + "mask_probability = 0.1")

    with pytest.raises(ConfigError) as caught:
        load_config(path, ["bacth_size=8", "mask_probabilty=0.2", "seed", "block_size=0"])

    own = "A setting of your own is declared in config/validator.py (--set)"
    assert problems(caught) == [
        "--set seed: should be name=value",
        f"bacth_size: unknown, did you mean batch_size? {own}",
        f"mask_probabilty: unknown, did you mean mask_probability? {own}",
        "block_size: should be greater than or equal to 1, got int 0 (--set)",
    ]


def test_one_text_is_not_a_list_of_overrides(tmp_path):
    """Its letters would be taken for overrides."""
    with pytest.raises(ConfigError, match="got text 'seed=1'; put it in a list"):
        load_config(write(tmp_path / "config.toml", TOML), "seed=1")


def test_a_program_takes_its_config_from_the_command_line(tmp_path, monkeypatch, capsys):
    """``train.py CONFIG --set a=1 --set b=2``, and help that says so."""
    path = str(write(tmp_path / "config.toml", TOML))
    monkeypatch.setattr(sys, "argv", ["train.py", path, "--set", "seed=7", "--set", "lr=0.1"])

    config = config_from_command_line(description="Train.")
    with pytest.raises(SystemExit):
        config_from_command_line(["--help"], description="Train a small model.")
    shown = capsys.readouterr().out

    assert (config.seed, config.lr) == (7, 0.1)
    assert "Train a small model." in shown
    assert "--set NAME=VALUE" in shown


# Workspace and defaults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["config/deep", "config", "."])
def test_the_workspace_is_found_from_the_config(workspace, place):
    """In its folder or the one above, not further up."""
    path = write(workspace / place / "train.toml", TOML)

    config = load_config(path)

    assert config.workspace == (None if place == "config/deep" else workspace)
    if config.workspace:
        assert config.dataset_path == workspace / "data" / "char"


def test_the_current_directory_is_looked_in_first(workspace, monkeypatch, tmp_path):
    """And is remembered in full, so that changing it later does no harm."""
    here = tmp_path / "here"
    (here / "data" / "char").mkdir(parents=True)
    write(workspace / "config" / "train.toml", TOML)
    monkeypatch.chdir(here)

    config = load_config(os.path.relpath(workspace / "config" / "train.toml"))
    monkeypatch.chdir(tmp_path)

    assert config.dataset_path == here / "data" / "char"


def test_a_relative_config_leads_to_a_whole_path(workspace, monkeypatch):
    """Also where the workspace is the folder above."""
    write(workspace / "config" / "train.toml", TOML)
    monkeypatch.chdir(workspace / "config")

    assert load_config("train.toml").workspace == workspace


def test_without_a_dataset_no_workspace_is_taken(workspace, monkeypatch):
    """So none of its code is run: the config says first what it is about."""
    mark = workspace / "was_run"
    write(workspace / "config" / "validator.py", MARK.format(str(mark)))
    path = write(workspace / "config" / "train.toml", "batch_size = 32\nblock_size = 256")
    monkeypatch.chdir(workspace)

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert problems(caught) == ["dataset: missing, it has no default; set it"]
    assert not mark.exists()


def test_a_workspace_that_is_given_is_not_searched(workspace, tmp_path):
    """Even if the dataset is not there yet; but it must be a folder."""
    path = write(workspace / "config" / "train.toml", TOML)
    other = tmp_path / "other"
    other.mkdir()

    assert load_config(path, workspace="../other").dataset_path == Path.cwd() / "../other/data/char"
    with pytest.raises(ConfigError, match=r"workspace '.*nowhere': no such folder; give the one that holds data/"):
        load_config(path, workspace=tmp_path / "nowhere")


def test_a_config_without_workspace_loads_and_says_where_it_looked(workspace):
    """A trainer that only reads may do without; who needs the dataset is told the nearest name."""
    (workspace / "data" / "words").mkdir()
    path = write(workspace / "config" / "train.toml", TOML.replace("char", "chars"))

    config = load_config(path)

    assert config.workspace is None
    with pytest.raises(ConfigError) as caught:
        config.dataset_path  # noqa: B018
    places = f"{Path.cwd()}, {workspace / 'config'}, {workspace}"
    assert str(caught.value) == (
        f"dataset 'chars': there is no folder data/chars in {places}; did you mean 'char'? There are: char, words"
    )


def test_a_config_from_values_has_no_dataset_path():
    """The error names the function that knows workspaces."""
    with pytest.raises(ConfigError, match=r"use load_config\(path, workspace=\.\.\.\)"):
        check_config(ENOUGH).dataset_path  # noqa: B018


def test_defaults_lie_under_the_shared_config(workspace):
    """In the order of their names, Python and TOML mixed; hidden and private files are not settings."""
    defaults = workspace / "data" / "char" / "config"
    write(defaults / "a.py", "seed = 1\nmax_backlog = 1\nlr = 1\nwidth = 1\ndepth = 1")
    write(defaults / "b.toml", "max_backlog = 2\nlr = 2\nwidth = 2")
    write(defaults / "c.py", "lr = 3\nwidth = 3\nbatch_size = 3")
    write(defaults / ".d.py", "hidden = 4")
    write(defaults / "_e.py", "private = 5")
    path = write(workspace / "config" / "train.py", PYTHON + "width = 6")

    config = load_config(path, {"depth": 7})

    assert (config.seed, config.max_backlog, config.lr, config.width, config.depth) == (1, 2, 3, 6, 7)
    assert config.batch_size == 32
    assert config.names().keys().isdisjoint({"hidden", "private"})


def test_a_wrong_default_names_its_file(workspace):
    """The line says which file to correct."""
    default = write(workspace / "data" / "char" / "config" / "a.toml", "seed = -1\nbacth_size = 2")
    path = write(workspace / "config" / "train.toml", TOML)

    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert [line.endswith(f"({default})") for line in problems(caught)] == [True, True]


def test_the_error_names_the_config_once(tmp_path):
    """In its first line; only what comes from elsewhere says so itself."""
    path = write(tmp_path / "config.toml", TOML + "max_backlog = 0")

    with pytest.raises(ConfigError) as caught:
        load_config(path, ["seed=-1"])

    assert str(caught.value).splitlines() == [
        f"{path} has 2 problems:",
        "  seed: should be greater than or equal to 0, got int -1 (--set)",
        "  max_backlog: should be greater than or equal to 1, got int 0",
    ]


def test_a_near_miss_of_a_default_is_an_error(workspace):
    """The dataset's defaults say which names it knows."""
    write(workspace / "data" / "char" / "config" / "a.py", "mask_probability = 0.15")
    path = write(workspace / "config" / "train.py", PYTHON + "mask_probabilty = 0.3")

    with pytest.raises(ConfigError, match="mask_probabilty: unknown, did you mean mask_probability"):
        load_config(path)


def test_short_words_are_names_in_themselves(workspace):
    """A config may well have n_head where the defaults have d_head."""
    write(workspace / "data" / "char" / "config" / "a.py", "d_head = 64\nlr = 1\nbeta1 = 0.9\nencoder_layers = 6")
    path = write(workspace / "config" / "train.py", PYTHON + "n_head = 6\nwr = 1\nbeta2 = 0.99\ndecoder_layers = 6")

    assert load_config(path).names().keys() >= {"d_head", "n_head", "lr", "wr", "beta1", "beta2", "decoder_layers"}


def test_a_config_among_the_defaults_is_read_once(workspace):
    """As the shared config, not as a default under itself."""
    counter = workspace / "count"
    count = f"with open({str(counter)!r}, 'a') as _file:\n    _file.write('x')"
    path = write(workspace / "data" / "char" / "config" / "train.py", PYTHON + count)

    load_config(path, workspace=workspace)

    assert counter.read_text() == "x"


def test_the_name_of_a_dataset_leads_nowhere_else(workspace):
    """A path in it is refused before any file is looked for by it."""
    mark = workspace / "was_run"
    write(workspace / "evil" / "config" / "a.py", MARK.format(str(mark)))
    path = write(workspace / "config" / "train.toml", TOML.replace("char", "../evil"))

    with pytest.raises(ConfigError, match=r"dataset: name '\.\./evil'"):
        load_config(path, workspace=workspace)

    assert not mark.exists()


# The workspace's own validator --------------------------------------------------------------------------------

OWN_MODEL = """
from __future__ import annotations
from pydantic import Field
from poolish.serve.config import SharedConfig

class Config(SharedConfig):
    mask_probability: float = Field(default=0.15, ge=0, le=1)
    spilt: str | None = None
"""


def test_a_workspace_may_add_settings_of_its_own(workspace):
    """They are checked, have defaults, and are known: misspelling them is an error, resembling others is not."""
    write(workspace / "config" / "validator.py", OWN_MODEL)
    path = write(workspace / "config" / "train.toml", TOML)

    config = load_config(path, ["spilt=x"])
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["mask_probability=2", "mask_probabilty=1", "seed=-1"])

    assert isinstance(config, SharedConfig)
    assert (config.mask_probability, config.spilt, config.workspace) == (0.15, "x", workspace)
    assert [line.split(",")[0] for line in problems(caught)] == [
        "mask_probabilty: unknown",
        "seed: should be greater than or equal to 0",
        "mask_probability: should be less than or equal to 1",
    ]


EVEN = """
from typing import Annotated
from pydantic import Field, TypeAdapter
Even = Annotated[int, Field(multiple_of=2)]
"""


@pytest.mark.parametrize(
    "body",
    [
        "raise ValueError('block_size: should be even')",
        "return ['block_size: should be even']",
        "return 'block_size: should be even'",
        "yield 'block_size: should be even'",
        "TypeAdapter(dict[str, Even]).validate_python({'block_size': 3})",
    ],
)
def test_a_workspace_may_check_the_whole(workspace, body):
    """By raising, returning or yielding; together with what poolish finds."""
    check = f"def validate(config):\n    if config.block_size % 2:\n        {body}"
    write(workspace / "config" / "validator.py", EVEN + check)
    path = write(workspace / "config" / "train.toml", TOML)

    assert load_config(path).block_size == 256
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["block_size=3", "blok_size=3"])

    first, second = problems(caught)
    assert first.startswith("blok_size: unknown, did you mean block_size?")
    assert second in ("block_size: should be even", "block_size: should be a multiple of 2, got int 3")


def test_a_bug_in_the_validator_is_not_taken_for_a_problem(workspace):
    """It keeps its type and gains the place."""
    validator = write(workspace / "config" / "validator.py", "def validate(config):\n    return config.no_such_thing")

    with pytest.raises(AttributeError) as caught:
        load_config(write(workspace / "config" / "train.toml", TOML))

    assert caught.value.__notes__ == [f"while validate(config) of {validator} looked at the config"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class Config: ...", "Config must subclass SharedConfig, got <class"),
        ("Config = 7", "Config must subclass SharedConfig, got 7"),
        ("def validate_config(config): ...", r"checks nothing; define validate\(config\), or Config"),
    ],
)
def test_a_validator_that_would_check_nothing_is_an_error(workspace, text, reason):
    """A check that never runs is worse than none."""
    write(workspace / "config" / "validator.py", text)

    with pytest.raises(ConfigError, match=rf"validator\.py: {reason}"):
        load_config(write(workspace / "config" / "train.toml", TOML))


def test_rules_of_pydantic_over_several_settings_are_listed_too(workspace):
    """Without the whole config as the value that was got."""
    write(
        workspace / "config" / "validator.py",
        "from pydantic import model_validator\nfrom poolish.serve.config import SharedConfig\n"
        "class Config(SharedConfig):\n    @model_validator(mode='after')\n    def check(self):\n"
        "        raise ValueError('batch_size times block_size is too much')\n",
    )

    with pytest.raises(ConfigError) as caught:
        load_config(write(workspace / "config" / "train.toml", TOML))

    assert problems(caught) == ["config: batch_size times block_size is too much"]
