"""The shape of the project: what imports what, what is public, what loads what, what is never used or written.

Most of it is read from the source as a syntax tree, so it also holds for lines that no test runs.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import poolish
from tests.import_graph import ROOT, cycles, graph, imports, package_of, run_nodes, sources

#: From the ground up. A package may import those on lower floors and itself, never one on its own floor or above.
#: The ground is finer than "the shared modules": seeds permute and files checksum with the kernels, all may raise.
FLOORS: tuple[set[str], ...] = (
    {"printable"},
    {"concurrency", "errors", "fixed", "health", "in_flight"},
    {"arguments", "kernels", "html", "jax_bridge", "torch_bridge", "workers"},
    {"seeds", "files", "prefetch", "priorities", "ragged", "versions"},
    {"schema", "runs", "ranks", "formats"},
    {"tabular"},
    {"expressions", "columns", "fingerprints"},
    {"guards"},
    {"rows", "tokens"},
    {"transports"},
    {"recipes", "serve", "load"},
    {"replay"},
    {"engines", "integrations", "report", "validation"},
    {"cli", "testing"},
    {"__main__"},
)
#: What a package names for its users though its home is above: module -> names. It is loaded when a user asks for it,
#: and only the module that lists public names may do so.
UPSTAIRS = {"poolish.guards": {"poolish.validation.validate"}}
FLOOR_OF = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}

PUBLIC_NAMES = {
    *("DatasetBuffer", "register_normalizer"),
    *("StreamStore", "StreamSet", "MemmapBuffer"),
    *("DataProviderBase", "DataProvider", "DatasetProvider", "DatasetConsumer"),
    *("DatasetRecipe", "bake", "col", "register_step"),
    *("Dataset", "Loader", "verify_resume"),
    *("Schema", "Field"),
    *("Suite", "Profile"),
    *("BadText", "BudgetSpent", "CircuitOpen", "ConfigError", "CorruptDataError", "DataRefused", "DurabilityLost"),
    *("LimitExceeded", "NumberTooLarge", "PacingTimeout", "PoolishError", "QueueError", "QueueNotFound", "RecipeError"),
    *(
        "ResumeError",
        "SchemaError",
        "StaleSchema",
        "Starved",
        "StoreFull",
        "StoreLocked",
        "Unfingerprintable",
        "UnknownColumn",
    ),
    "show_versions",
    *("errors", "guards", "load", "testing"),
}

#: Each with the word that a module must carry in its name to be about it: ``torch_bridge``, ``hf``.
OPTIONAL_LIBRARIES = {
    "torch": "torch",
    "datasets": "hf",
    "PIL": "image",
    "ray": "ray",
    "pandas": "pandas",
    "polars": "polars",
    "lightning": "lightning",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "trl": "trl",
    "jax": "jax",
    "gymnasium": "gymnasium",
    "stable_baselines3": "sb3",
    "torchrl": "torchrl",
    "tensordict": "torchrl",
    "minari": "minari",
}

#: What a module of an integration may import as well: the libraries that its framework is made of.
BELOW_FRAMEWORKS = {
    "transformers": {"torch", "accelerate"},
    "trl": {"datasets"},
    "sb3": {"torch", "gymnasium"},
    "torchrl": {"torch"},
    "minari": {"gymnasium"},
}

#: Packages that stay loadable, and quick to load, where no optional library is installed.
LEAN_PACKAGES = {package for packages in FLOORS[: FLOOR_OF["rows"] + 1] for package in packages}

#: Modules that turn bytes into running code. Data is never code, so there is no exception to this list.
BANNED_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "jsonpickle", "marshal", "shelve"}
BANNED_CALLS = {"eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}


# Reading the source -------------------------------------------------------------------------------------------


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Dotted names that a tree calls: ``torch.load(path)`` is ``torch.load``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


# What may import what ------------------------------------------------------------------------------------------


def wrong_imports(module: str, tree: ast.AST) -> Iterator[str]:
    """What a module of poolish imports from its own floor or above."""
    package = package_of(module)
    for name, line in imports(tree):
        if name.split(".")[0] != "poolish" or name == "poolish.__version__" or name in UPSTAIRS.get(module, ()):
            continue
        other = package_of(name)
        if other not in FLOOR_OF:
            yield f"{module}:{line} imports {name} from the top of the package; import it from its own package"
        elif other != package and FLOOR_OF[other] >= FLOOR_OF[package]:
            yield f"{module}:{line} imports {name}, which is not below {package}"


def test_imports_point_down():
    """A package imports those below it and none beside or above it, not even inside functions or for types."""
    modules = {module: tree for module, tree in sources().items() if module.startswith("poolish.")}

    wrong = [line for module, tree in modules.items() for line in wrong_imports(module, tree)]

    assert wrong == []


def test_a_name_from_above_is_for_users_and_loaded_late():
    """``poolish.guards`` names ``validate`` without loading the packages above, and no module below uses it."""
    for module, names in UPSTAIRS.items():
        loaded = importlib.import_module(module)
        users = [other for other, tree in sources().items() for name, _ in imports(tree) if name in names]

        assert {f"{home}.{name}" for name, home in loaded._UPSTAIRS.items()} == names
        assert [
            node
            for node in run_nodes(sources()[module], functions=False)
            if {name for name, _ in imports(node)} & names
        ] == []
        assert [
            user for user in users if user != module and FLOOR_OF[package_of(user)] <= FLOOR_OF[package_of(module)]
        ] == []


def test_every_module_has_a_floor():
    """A new package is put into the order on purpose, else nothing above would hold for it."""
    homeless = {package_of(module) for module in sources() if module.startswith("poolish.")} - FLOOR_OF.keys()

    assert homeless == set()


def test_imports_form_no_cycle():
    """Not even through imports inside functions: each module can be read after those it imports."""
    found = cycles(graph(sources()))

    assert found == []


def test_cycles_are_seen():
    """The check above sees cycles of any length and through functions, and ignores imports for types."""
    trees = {
        "a": ast.parse("import b"),
        "b": ast.parse("def f():\n    from c.x import y"),
        "c.x": ast.parse("import a"),
        "d": ast.parse("import a\nif TYPE_CHECKING:\n    import e"),
        "e": ast.parse("import d"),
    }

    assert cycles(graph(trees)) == [["a", "b", "c.x"]]


def test_no_relative_imports():
    """Imports are written in full: they read the same everywhere, and the order above can be checked."""
    relative = [
        f"{module}:{node.lineno}"
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]

    assert relative == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("poolish.rows.columns", "from poolish.tokens import StreamStore"),  # sideways
        ("poolish.schema", "import poolish.rows"),  # up
        ("poolish.schema", "def f():\n    from poolish.rows.columns import grow"),  # up, later
        ("poolish.errors", "if TYPE_CHECKING:\n    from poolish import schema"),  # up, for types
        ("poolish.rows", "from poolish import DatasetBuffer"),  # through the roof
        ("poolish.rows", "import poolish"),
    ],
)
def test_wrong_imports_are_seen(module: str, line: str):
    """The check above can fail."""
    assert len(list(wrong_imports(module, ast.parse(line)))) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("poolish.rows.columns", "from poolish.rows.access import gather_fn"),
        ("poolish.rows.columns", "from poolish import errors, schema"),
        ("poolish.seeds", "from poolish.kernels import permute"),
        ("poolish.versions", "from poolish import __version__"),
        ("poolish.rows", "import poolishing"),
    ],
)
def test_right_imports_are_not_refused(module: str, line: str):
    """And it does not cry wolf."""
    assert list(wrong_imports(module, ast.parse(line))) == []


# What is public -----------------------------------------------------------------------------------------------


def test_public_names_are_those_intended():
    """Adding a name to the top is a decision, made here as well; the three lists in the package agree."""
    lazy = {*poolish._HOMES, *poolish._MODULES}
    typed = {
        alias.asname
        for node in sources()["poolish"].body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for imported in node.body
        if isinstance(imported, ast.ImportFrom)
        for alias in imported.names
    }

    assert set(poolish.__all__) == PUBLIC_NAMES
    assert lazy == PUBLIC_NAMES
    assert typed == PUBLIC_NAMES


def test_public_names_resolve():
    """Each name at the top is there, documented, and found by completion."""
    assert [name for name in sorted(PUBLIC_NAMES) if not getattr(poolish, name).__doc__] == []
    assert set(dir(poolish)) == PUBLIC_NAMES | {"__version__"}


def test_unknown_name_is_an_attribute_error():
    """A misspelt name fails as in any module."""
    with pytest.raises(AttributeError, match="'poolish' has no attribute 'DatasetBufer'"):
        poolish.DatasetBufer  # noqa: B018


def is_of_framework(module: str) -> bool:
    """Whether loading a module loads a framework, which takes seconds and hundreds of megabytes."""
    return module.startswith("poolish.integrations.") and module.split(".")[-1] in OPTIONAL_LIBRARIES.values()


def test_exported_names_exist():
    """Every module loads; what it lists in ``__all__`` it has, once, and no private names among it."""
    for module in [name for name in sources() if not name.endswith("__main__") and not is_of_framework(name)]:
        loaded = importlib.import_module(module)
        exported = list(getattr(loaded, "__all__", []))

        assert [name for name in exported if not hasattr(loaded, name)] == [], module
        assert [name for name in exported if name.startswith("_")] == [], module
        assert len(set(exported)) == len(exported), module


def test_first_names_are_the_same_objects():
    """The package of the first programs is another door to the same class, not a copy."""
    import dataset_buffer
    import dataset_buffer.buffer

    for door in (dataset_buffer, dataset_buffer.buffer):
        assert door.DatasetBuffer is poolish.DatasetBuffer
        assert door.register_normalizer is poolish.register_normalizer
    for name in dataset_buffer.__all__:
        assert getattr(dataset_buffer, name) is getattr(poolish, name)


# What loads what ----------------------------------------------------------------------------------------------


def loaded_by(statement: str) -> set[str]:
    """The libraries that a fresh interpreter holds after ``statement`` and did not hold before."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in done.stdout.split()} - sys.stdlib_module_names


def test_import_poolish_loads_nothing_heavy():
    """``import poolish`` brings poolish alone: listing its names does not load them either."""
    loaded = loaded_by("import poolish; dir(poolish); poolish.__version__")

    assert loaded == {"poolish"}
    assert loaded_by("import dataset_buffer") == {"poolish", "dataset_buffer"}


def test_public_names_load_no_optional_library():
    """A program that holds no tensor pays for no torch: all names together load none, so none does alone."""
    assert loaded_by(f"from poolish import {', '.join(sorted(PUBLIC_NAMES))}") & OPTIONAL_LIBRARIES.keys() == set()


def eager_imports(module: str, tree: ast.Module) -> set[str]:
    """The optional libraries that are loaded with a module, without those that its name announces."""
    announced = module.split(".")[-1].split("_")
    return {
        library
        for node in run_nodes(tree, functions=False)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for library in (name.split(".")[0] for name, _ in imports(node))
        if library in OPTIONAL_LIBRARIES and OPTIONAL_LIBRARIES[library] not in announced
    }


def test_lean_packages_load_optional_libraries_late():
    """Up to rows, an optional library is imported where it is needed, for types, or by the module of its name."""
    lean = {module: tree for module, tree in sources().items() if package_of(module) in LEAN_PACKAGES}

    eager = {module: found for module, tree in lean.items() if (found := eager_imports(module, tree))}

    assert eager == {}


def test_each_integration_is_loaded_by_its_own_name_only():
    """A framework is imported by the module that is named for it, which nothing else of poolish imports."""
    modules = {module: tree for module, tree in sources().items() if is_of_framework(module)}
    users = {name for module, tree in sources().items() for name, _ in imports(tree) if module not in modules}
    eager = {
        module: found
        for module, tree in sources().items()
        if package_of(module) == "integrations"
        and (found := eager_imports(module, tree) - BELOW_FRAMEWORKS.get(module.split(".")[-1], set()))
    }

    assert {module.split(".")[-1] for module in modules} == {
        *("lightning", "transformers", "accelerate", "trl", "jax", "gymnasium", "sb3", "torchrl", "minari")
    }
    assert users & modules.keys() == set()
    assert eager == {}


@pytest.mark.parametrize(
    ("module", "lines", "expected"),
    [
        ("a", "try:\n    import torch.nn\nexcept ImportError:\n    from PIL import Image", {"torch", "PIL"}),
        ("a", "if typing.TYPE_CHECKING:\n    import torch\nelse:\n    import ray", {"ray"}),
        ("a", "class A:\n    import polars\n    def f(self):\n        import pandas", {"polars"}),
        ("a", "if TYPE_CHECKING:\n    import torch\ndef f():\n    import ray", set()),
        ("a.torch_bridge", "import torch, pandas", {"pandas"}),
    ],
)
def test_eager_imports_are_seen(module: str, lines: str, expected: set[str]):
    """The check above sees imports in branches and classes, and lets the late ones pass."""
    assert eager_imports(module, ast.parse(lines)) == expected


# What is never used -------------------------------------------------------------------------------------------


def unsafe_lines(module: str, tree: ast.AST) -> Iterator[str]:
    """Where a module could turn data into code."""
    for name, line in imports(tree):
        if name.split(".")[0] in BANNED_MODULES or name in BANNED_CALLS:
            yield f"{module}:{line} imports {name}"
    for name, call in calls(tree):
        allows_pickle = any(
            keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False" for keyword in call.keywords
        )
        if name in BANNED_CALLS or name.removeprefix("builtins.") in {"eval", "exec"} or allows_pickle:
            yield f"{module}:{call.lineno} calls {ast.unparse(call)}"


def short_writes(module: str, tree: ast.Module) -> Iterator[str]:
    """Calls that may write less than they are given, without an error."""
    for name, call in calls(tree):
        if name in {"os.write", "os.writev", "os.pwrite", "os.pwritev"}:
            yield f"{module}:{call.lineno} calls {ast.unparse(call)}"


def test_every_file_is_written_by_the_functions_that_write_everything_or_raise():
    """Only ``poolish.files`` calls the system's writes; the command line prints to a pipe that is no file."""
    lines = [line for module, tree in sources().items() for line in short_writes(module, tree)]

    assert [line for line in lines if not line.startswith(("poolish.files.", "poolish.cli.prepare:"))] == []
    assert list(short_writes("module", ast.parse("import os\nos.pwrite(fd, data, 0)")))


def test_data_is_never_code():
    """Nothing in poolish can unpickle or execute what it reads."""
    assert [line for module, tree in sources().items() for line in unsafe_lines(module, tree)] == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "def f():\n    from cloudpickle import loads",
        "from multiprocessing import x; import joblib.memory",
        "eval(text)",
        "exec(code, {})",
        "torch.load(path, weights_only=True)",
        "from torch import load",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=trusted)",
        "yaml.load(text, Loader=yaml.Loader)",
    ],
)
def test_unsafe_lines_are_seen(line: str):
    """The check above can fail."""
    assert len(list(unsafe_lines("module", ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    ["np.load(path)", "np.load(path, allow_pickle=False)", "yaml.safe_load(text)", "model.eval()", "re.compile(p)"],
)
def test_safe_lines_are_not_refused(line: str):
    """And it does not cry wolf."""
    assert list(unsafe_lines("module", ast.parse(line))) == []


# What is in the files -----------------------------------------------------------------------------------------

#: Somebody's machine, and work left undone (spelt so that this line is not found itself).
LEFTOVERS = re.compile(
    rf"(?<![\w./-])(?:/(?:home|Users|root|opt|work)/\w|{re.escape(str(ROOT))}\b)|\b(?:TO[D]O|FIX[M]E|XX[X])\b"
)


def project_files(folder: Path = ROOT) -> Iterator[Path]:
    """Every file that is, or would be, committed. Git is not asked: it may be absent, or refuse a borrowed folder."""
    lines = (ROOT / ".gitignore").read_text().splitlines()
    ignored = [".git", *(line.rstrip("/") for line in lines if line and not line.startswith("#"))]
    for path in sorted(folder.iterdir()):
        if any(fnmatch(name, pattern) for name in (path.name, str(path.relative_to(ROOT))) for pattern in ignored):
            continue
        yield from project_files(path) if path.is_dir() else [path]


def leftovers(text: str) -> list[tuple[int, str]]:
    return [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1) if LEFTOVERS.search(line)]


def test_no_machine_paths_and_no_unfinished_marks():
    """The files speak of the project only: nobody's folders, nothing put off."""
    found = [
        f"{path.relative_to(ROOT)}:{n} {line}"
        for path in project_files()
        for n, line in leftovers(path.read_text(errors="replace"))
    ]

    assert found == []


def test_leftovers_are_seen():
    """The check above can fail."""
    unfinished = f"# {'to' + 'do'}: later".upper()

    assert leftovers("fine\n" + unfinished) == [(2, unfinished)]
    assert leftovers(f"path = '/{'home'}/someone/data'") != []
    assert leftovers(f"path = '{ROOT}/data'") != []
    assert leftovers("/home page of ~/.cache, docs/home/x and /usr/bin/env") == []


# How it is written --------------------------------------------------------------------------------------------

#: Words that leave the reader to guess what acts, or for which the field has a better term.
BANNED_WORDS = re.compile(
    r"\b(?:told|nobody|somebody|whoever|(?:is|are|was|were)\s+meant|mend(?:ed|s|ing)?|let(?:s|ting)?\s+go|who\s+has"
    r"|so\s+many|goes\s+on\s+where\s+he\s+was)\b",
    re.I,
)


def banned_words(source: str) -> list[tuple[int, str]]:
    """The banned words in docstrings, messages and comments, with the line where each text begins."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    constants = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)]
    strings = [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]
    return sorted((line, found[0]) for line, text in comments + strings for found in BANNED_WORDS.finditer(text))


def test_docstrings_messages_and_comments_use_plain_terms():
    """Sentences state what acts on what, in words that an engineer in the field would use."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {word}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for line, word in banned_words(path.read_text())
    ]

    assert found == []


def test_banned_words_are_seen():
    """The check above sees docstrings, parts of f-strings and comments, and lets code pass."""
    text = 'def told():\n    """First.\n\n    Nobody reads it."""\n    x = f"{told} is meant"  # whoever'

    assert banned_words(text) == [(2, "Nobody"), (5, "is meant"), (5, "whoever")]
    assert banned_words('"""untold, amended, it is\nmeant so"""') == [(1, "is\nmeant")]
