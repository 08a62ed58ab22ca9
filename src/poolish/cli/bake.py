"""``poolish bake``: a recipe file becomes a directory, whole or not at all.

A directory that is there is refused, unless --overwrite is given and nothing is in it but what a bake writes: then the
two change places in one step of the file system (``files.publishing``), so at each moment ``out`` is the old one or
the new one.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from poolish.cli.terminal import FAILED, MISUSED, Failure, Interrupt, message, one_line, print_stderr
from poolish.errors import ConfigError
from poolish.files import publish_directory, raising_store_full
from poolish.printable import counted, printable
from poolish.recipes import BakeResult, DatasetRecipe
from poolish.recipes.engine import LocalEngine
from poolish.recipes.fragment_rows import BakedFragment
from poolish.recipes.recipe import ON_ERROR

Task = TypeVar("Task")
Result = TypeVar("Result")

FORMATS = {"parquet": "data.parquet", "arrow": "data.arrow", "buffer": "data.rows"}
WRITTEN = (*FORMATS.values(), "report.json", "report.html", "lineage.parquet", "rejects.parquet")

_LINE_EVERY_S = 10.0


@dataclass(frozen=True)
class Order:
    """What is to be baked, and how."""

    recipe: Path
    out: Path | None = None
    explain: bool = False
    cache: Path | None = None
    on_error: str = "raise"
    budget: str | None = None
    workers: int | None = None
    format: str = "parquet"
    steps: tuple[str, ...] = ()
    overwrite: bool = False


def bake(order: Order) -> int:
    """Do it and print what was done; the exit code: 0, 1 if it failed, 2 if it could not begin, 128 + the signal.

    With ``explain`` 1 says that there are problems: a bake would fail, or may.
    """
    is_begun = False
    with Interrupt() as interrupt:
        try:
            recipe, target = _ready(order)
            is_begun = True
            if target is None:
                explanation = recipe.explain(order.cache, on_error=order.on_error)
                print(message(explanation))
                return FAILED if explanation.problems else 0
            result = _baked(recipe, order)

            def check(target: Path) -> None:
                interrupt.patience = 1  # from here on it is as quick to finish
                check_free(target, overwrite=order.overwrite)  # once more: it was long ago

            with publish_directory(target, check=check) as folder:
                write_result(result, folder, order.format)
        except KeyboardInterrupt:
            kept = "" if order.cache is None else f"; finished fragments are in {order.cache}"
            print_stderr(f"ended by {interrupt.name}: {order.out or 'nothing'} is as it was{kept}")
            if interrupt.count > 1:
                # Leaving Python would wait for a step that hangs in a thread.
                sys.stderr.flush()
                os._exit(interrupt.exit_code)
            return interrupt.exit_code
        except Exception as error:
            # Before the bake has begun it is the command that is wrong, the recipe, or code that --steps has named.
            failure = Failure.of(error, None if is_begun else MISUSED)
            print_stderr(failure.text)
            return failure.code
    _show(result, order)
    return 0


def _ready(order: Order) -> tuple[DatasetRecipe, Path | None]:
    """The recipe and the target, after everything that can be known to be wrong before any work."""
    if order.on_error not in ON_ERROR:
        raise ConfigError(f"--on-error {order.on_error}: one of {', '.join(ON_ERROR)}")
    if _budget(order) is not None and order.on_error == "raise":
        raise ConfigError(f"--budget {order.budget} is for --on-error skip or quarantine; the first bad row ends it")
    if order.format not in FORMATS:
        raise ConfigError(f"--format {order.format}: one of {', '.join(FORMATS)}")
    target = None if order.explain else _target(order)
    for name in order.steps:
        load_steps(name)
    try:
        return DatasetRecipe.load(order.recipe), target
    except OSError as error:
        raise ConfigError(f"{order.recipe} cannot be read: {error.strerror or error}") from None


def _budget(order: Order) -> int | float | None:
    """A number of rows, or with a dot a part of them: 1 is one row, 1.0 is all."""
    if order.budget is None:
        return None
    if re.fullmatch(r"[0-9]{1,18}", order.budget, re.ASCII):
        return int(order.budget)
    if re.fullmatch(r"[01]?\.[0-9]{1,18}", order.budget, re.ASCII) and float(order.budget) <= 1:
        return float(order.budget)
    raise ConfigError(f"--budget {order.budget}: a number of rows, or a part of them such as 0.01")


def _target(order: Order) -> Path:
    if order.out is None:
        raise ConfigError("-o OUT is missing: the directory to be made; or --explain, which makes none")
    # A link to a directory stays a link: what it leads to is replaced.
    out = Path(os.path.realpath(order.out))
    if order.cache is not None and Path(os.path.realpath(order.cache)).is_relative_to(out):
        raise ConfigError(f"--cache {order.cache} lies in {order.out}, which is replaced as a whole; put it elsewhere")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"-o {order.out}: {out.parent} is no directory that you may write to; make it first")
    check_free(out, overwrite=order.overwrite)
    return out


def load_steps(name: str) -> None:
    """Run a file, or import a module, that registers steps: the user's own code, named by the user and not by data."""
    from poolish.serve.workspace import read_source, run_source

    if name.endswith(".py"):
        path = Path(name).absolute()
        run_source(path, read_source(path), f"poolish_steps_{path.stem}")
        return
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError(f"--steps {name}: no module of this name is found; give the path of a .py file") from None


def _baked(recipe: DatasetRecipe, order: Order) -> BakeResult:
    with Watched(order.workers, recipe.name) as engine:
        return recipe.bake(
            engine=engine, on_error=order.on_error, cache=order.cache, budget=_budget(order), progress=engine.progress
        )


def _show(result: BakeResult, order: Order) -> None:
    console = Console(highlight=False)
    for i, line in enumerate(str(result.report).split("\n")):
        console.print(one_line(line, "" if i else "bold"), soft_wrap=True)
    console.print(one_line(f"written to {order.out}"), soft_wrap=True)


# What is seen meanwhile ---------------------------------------------------------------------------------------------


class Watched:
    """The local engine, with a line that says how far it is: a bar on a terminal, now and then a line elsewhere.

    It is drawn when a fragment is done and not by a thread: a step may fork, and a lock that a thread holds at that
    moment would be held in the child forever.
    """

    def __init__(self, n_workers: int | None, title: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._title, self._clock = LocalEngine(n_workers), title, clock
        self.n_done = self.n_fragments = self.n_rows = 0
        self._started = self._written = clock()
        self._name = ""
        console = Console(stderr=True, highlight=False)
        # rich calls a pipe a terminal when FORCE_COLOR is set.
        self._is_live = console.is_terminal and sys.stderr.isatty()
        columns = BarColumn(), TextColumn("{task.description}", markup=False)
        self._bar = Progress(
            *columns, console=console, transient=True, auto_refresh=False, disable=not self._is_live,
            redirect_stdout=sys.stdout.isatty(),
        )  # fmt: skip
        self._task = self._bar.add_task(printable(title), total=None)

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Results in the order of tasks, counted as they come."""
        self.n_fragments += len(tasks)
        for result in self._engine.run(function, tasks):
            self.n_done += 1
            self.n_rows += sum(len(each.piece) for each in _baked_in(result))
            self._show()
            yield result

    def progress(self, name: str, n_done: int, n_fragments: int) -> None:
        """Which ingredient it is about."""
        self._name = name

    def __str__(self) -> str:
        seconds = max(self._clock() - self._started, 1e-9)
        rate = f"{counted(self.n_rows, 'row')}, {self.n_rows / seconds:,.0f} rows/s"
        about = f", {self._name}" if self._name else ""
        return printable(f"{self._title}: {self.n_done:,} of {counted(self.n_fragments, 'fragment')}, {rate}{about}")

    def _show(self) -> None:
        if self._is_live:
            self._bar.update(self._task, completed=self.n_done, total=self.n_fragments, description=str(self))
            self._bar.refresh()
        elif self._clock() - self._written >= _LINE_EVERY_S:
            self._written = self._clock()
            print_stderr(str(self))

    def __enter__(self) -> Watched:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def _baked_in(result: object) -> list[BakedFragment]:
    """What a task has baked; a look at candidates bakes nothing."""
    return [each for each in (result if isinstance(result, list) else [result]) if isinstance(each, BakedFragment)]


# What is written ----------------------------------------------------------------------------------------------------


def write_result(result: BakeResult, folder: Path, format_: str) -> None:
    """Rows, report, lineage and rejects as files."""
    import pyarrow.parquet as pq

    data = folder / FORMATS[format_]
    with raising_store_full(folder):
        if format_ == "parquet":
            pq.write_table(result.table, data)
        elif format_ == "buffer":
            result.buffer.save(data)
        else:
            with pa.OSFile(str(data), "wb") as file, pa.ipc.new_file(file, result.table.schema) as writer:
                writer.write_table(result.table)
        pq.write_table(result.lineage.to_arrow(), folder / "lineage.parquet")
        pq.write_table(result.rejects, folder / "rejects.parquet")
        (folder / "report.json").write_text(result.report.to_json() + "\n", encoding="utf-8")
        (folder / "report.html").write_text(result.report.to_html(), encoding="utf-8")


# Where it is written ------------------------------------------------------------------------------------------------


def check_free(target: Path, *, overwrite: bool) -> None:
    """Whether a directory may be put at ``target``: there is nothing, or nothing but what a bake has written."""
    try:
        names = os.listdir(target)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ConfigError(f"{target} is a file; give the path of a directory that is to be made") from None
    if not names:
        return
    others = sorted(set(names) - set(WRITTEN))
    if others or "report.json" not in names:
        what = f"{others[0]!r}, which no bake wrote" if others else "no report of a bake"
        raise ConfigError(f"{target} is there and holds {what}; give the path of a directory that is to be made")
    if not overwrite:
        raise ConfigError(f"{target} is there already; give another directory, or --overwrite to replace it")
