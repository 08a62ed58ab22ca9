"""The commands and their options; all but the shortest are carried out by the modules beside this one."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Optional

import typer
from rich.console import Console
from rich.text import Text

from poolish.cli.prepare import Task, prepare_in
from poolish.cli.queue import purge, show_status, verify
from poolish.cli.terminal import FAILED, explained, one_line
from poolish.errors import ConfigError
from poolish.files import local_path, publish

if TYPE_CHECKING:
    from poolish.guards.checks.levels import Validation

app = typer.Typer(
    name="poolish",
    help="Datasets that change while you train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
queue_app = typer.Typer(help="Look at a queue, check it, discard it.", no_args_is_help=True)
app.add_typer(queue_app, name="queue")

#: What a workspace's own prepare.py runs.
prepare_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _local(path: Path | None) -> Path | None:
    """A path on this machine; a URL would become a folder ``s3:``."""
    try:
        return None if path is None else local_path(path, "it", instead="the sources of a recipe")
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


QueuePath = Annotated[
    Path, typer.Argument(callback=_local, metavar="PATH", help="data/<dataset>, its queue, or one split of that.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def _version(is_asked: bool) -> None:
    if is_asked:
        from poolish import __version__

        typer.echo(f"poolish {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Datasets that change while you train."""


@app.command("new")
def new(
    name: Annotated[
        Path, typer.Argument(callback=_local, metavar="NAME", help="The name, or the path, of the folder to make.")
    ],
    toml: Annotated[bool, typer.Option("--toml", help="Write the shared config as TOML instead of Python.")] = False,
) -> None:
    """Make a workspace (provider, config, trainer, test) that runs at once."""
    with explained(OSError):
        _new_workspace(name, is_toml=toml)


def _new_workspace(path: Path, *, is_toml: bool = False) -> None:
    """Make a workspace and print what to type next."""
    from poolish.serve.workspace import make_workspace

    name = path.name
    made = make_workspace(path, name, is_toml=is_toml)
    console = Console(highlight=False)
    console.print(Text.assemble("made ", one_line(path, "bold"), f" with {len(made)} files:"))
    for file in made:
        console.print(one_line(f"  {file.relative_to(path)}", "dim"), soft_wrap=True)
    config = f"config/train_{name}.{'toml' if is_toml else 'py'}"
    _print_steps(console, path, config)


def _print_steps(console: Console, path: Path, config: str) -> None:
    enter = f"cd {shlex.quote(str(path))}"
    steps = [
        ("fill the queue, in one terminal:", [enter, f"python prepare.py {config}"]),
        ("train on it, in another:", [enter, f"python train.py {config}"]),
        ("and test the provider:", [enter, "pytest"]),
    ]
    for what, commands in steps:
        console.print(f"\n{what}")
        console.print(one_line(f"  {'; '.join(commands)}", "bold green"), soft_wrap=True)


@app.command("prepare")
@prepare_app.command()
def prepare(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The shared config, a .py or .toml file.")],
    workers: Annotated[
        int, typer.Option("--workers", "-w", metavar="N", min=1, help="How many processes make batches.")
    ] = 1,
    overrides: Annotated[
        list[str], typer.Option("--set", metavar="NAME=VALUE", help="Override a setting of the config; repeatable.")
    ] = [],  # noqa: B006 - typer makes a new list for each call
    batches: Annotated[
        Optional[int],  # noqa: UP045 - typer reads this when it runs
        typer.Option(
            "--batches",
            metavar="N",
            min=1,
            help="End when each worker has made N batches of each split, earlier runs included.",
        ),
    ] = None,
    workspace: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--workspace",
            metavar="PATH",
            help="The folder that holds data/; otherwise it is searched around the config.",
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Workers are NAME0, NAME1, ...; change it to fill one queue from two places."
        ),
    ] = "w",
    worker: Annotated[Optional[int], typer.Option(hidden=True)] = None,  # noqa: UP045
    report: Annotated[Optional[int], typer.Option(hidden=True)] = None,  # noqa: UP045
) -> None:
    """Fill the queue of a dataset, as fast as the trainer empties it, until Ctrl-C."""
    settings = tuple(overrides) if batches is None else (*overrides, f"max_batches={batches}")
    raise typer.Exit(prepare_in(Task(config, settings, workspace, name), workers, worker, report))


@queue_app.command("status")
def queue_status(path: QueuePath, json: AsJson = False) -> None:
    """Show how each split stands: published, read, acknowledged, waiting, and who fills it."""
    with explained(OSError):
        show_status(path, as_json=json)


@queue_app.command("verify")
def queue_verify(path: QueuePath, json: AsJson = False) -> None:
    """Read and check every batch that is there; exit code 1 if anything is wrong."""
    with explained(OSError):
        raise typer.Exit(verify(path, as_json=json))


@queue_app.command("purge")
def queue_purge(
    path: QueuePath,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Discard a queue, or one split of it, with all its batches."""
    with explained(OSError):
        raise typer.Exit(purge(path, is_sure=yes))


@app.command("check")
def check_path(
    path: Annotated[
        Path, typer.Argument(callback=_local, metavar="PATH", help="A file, a glob, a directory, a stream or a queue.")
    ],
    level: Annotated[
        str,
        typer.Option(
            "--level", metavar="LEVEL", help="1 file, 2 format, 3 statistics, 4 meaning; each includes those before."
        ),
    ] = "meaning",
    suite: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--suite", callback=_local, metavar="FILE", help="What is expected: a .yaml or .toml file of a Suite."
        ),
    ] = None,
    reference: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--reference", callback=_local, metavar="PATH", help="Good data to compare with."),
    ] = None,
    fail_on: Annotated[
        Literal["warn", "error"], typer.Option("--fail-on", help="Which findings make the exit code 1.")
    ] = "error",
    json: AsJson = False,
    html: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--html", callback=_local, metavar="FILE", help="Write the report as a page, too."),
    ] = None,
) -> None:
    """Check data level by level. Nothing that is read is executed.

    Exit code: 0 ok, or warnings only; 1 failed, or a warning with --fail-on warn; 2 the question was wrong.
    """
    with explained(OSError):
        from poolish.validation import validate

        found = validate(path, level, suite=suite, reference=reference)
        _show_validation(found, as_json=json)
        if html is not None:
            with publish(html) as file:
                file.write(found.to_html(f"poolish check {path}").encode())
        is_failure = found.failed if fail_on == "error" else not found.ok
        raise typer.Exit(FAILED if is_failure else 0)


def _show_validation(found: Validation, *, as_json: bool) -> None:
    if as_json:
        typer.echo(found.to_json())
        return
    console = Console(highlight=False)
    for report in found.reports:
        for i, line in enumerate(str(report).split("\n")):
            console.print(one_line(line, "bold" if i == 0 else _style(line.lstrip())), soft_wrap=True)
    if len(found.reports) > 1:
        console.print(found.summary())


def _style(line: str) -> str:
    return "red" if line.startswith(("error:", "fatal:")) else "yellow" if line.startswith("warn:") else ""


def _schema(is_asked: bool) -> None:
    if is_asked:
        import json

        from poolish.recipes.models import json_schema

        typer.echo(json.dumps(json_schema(), indent=2))
        raise typer.Exit


@app.command("bake")
def bake_recipe(
    recipe: Annotated[
        Path, typer.Argument(callback=_local, metavar="RECIPE", help="A recipe: a .yaml, .toml or .json file.")
    ],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", "-o", callback=_local, metavar="OUT", help="The directory to make: data, report, lineage, rejects."
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Tell what a bake would do, bake nothing; exit code 1 if there are problems."),
    ] = False,
    cache: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--cache",
            callback=_local,
            metavar="DIR",
            help="Keep baked fragments here; the next bake reuses them.",
        ),
    ] = None,
    on_error: Annotated[
        str, typer.Option("--on-error", metavar="WHAT", help="What a bad row does: raise, skip or quarantine.")
    ] = "raise",
    budget: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--budget", metavar="X", help="How many rows may be rejected: 100, or 0.01 of all."),
    ] = None,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--workers", "-w", metavar="N", min=1, help="How many threads; one for each core by default."),
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="FORMAT", help="The rows as parquet, arrow or buffer.")
    ] = "parquet",
    steps: Annotated[
        list[str],
        typer.Option(
            "--steps",
            metavar="MODULE",
            help="Your own code that registers steps, a .py file or a module: it is run; repeatable.",
        ),
    ] = [],  # noqa: B006
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it is there and a bake has written it.")
    ] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", callback=_schema, is_eager=True, help="Print a JSON schema of recipes, for editors."),
    ] = False,
) -> None:
    """Make the dataset that a recipe describes; OUT appears complete or not at all."""
    from poolish.cli.bake import Order, bake

    parts = (recipe, out, explain, cache, on_error, budget, workers, format_, tuple(steps), overwrite)
    raise typer.Exit(bake(Order(*parts)))


@app.command("versions")
def versions() -> None:
    """Print what is installed here: the first lines of a useful bug report."""
    from poolish.versions import show_versions

    show_versions()
