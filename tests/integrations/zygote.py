"""Frameworks take seconds to import: one interpreter a framework imports it once, and forks a child for each run.

A run is a function of a module in this folder, called with keyword arguments; its result comes back as JSON. Ranks are
forked together, with the environment that torchrun would give them. The test processes themselves load no framework, so
they stay small to fork.
"""

from __future__ import annotations

import contextlib
import doctest
import faulthandler
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

#: What a run leaves here is never destroyed: a child ends without a word to its objects. After a process group is left,
#: the destructors of torch's DDP sometimes wait for ever or abort (without poolish as well).
KEPT: list[Any] = []

#: How long a run may take.
PATIENCE_S = 60


class Zygote:
    """An interpreter that has imported a module of runs."""

    def __init__(self, module: str) -> None:
        quiet = {"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integrations.zygote", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **quiet, **offline, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
            text=True,
        )

    def run(self, name: str, *, ranks: int = 1, environment: dict[str, str] | None = None, **options: Any) -> Any:
        """The result of a run, or a list of results if there are several ranks; an error of the run is raised."""
        results = self.outcomes(name, ranks=ranks, environment=environment, **options)
        errors = [result["error"] for result in results if "error" in result]
        assert not errors, "\n".join(errors)
        values = [result["value"] for result in results]
        return values if ranks > 1 else values[0]

    def error(self, name: str, *, ranks: int = 1, **options: Any) -> str:
        """The last line of the traceback of a run that fails."""
        (result, *_) = self.outcomes(name, ranks=ranks, **options)
        assert "error" in result, result
        return result["error"].strip().splitlines()[-1]

    def outcomes(
        self, name: str, *, ranks: int = 1, environment: dict[str, str] | None = None, **options: Any
    ) -> list[dict[str, Any]]:
        """What became of each rank: its ``value``, its ``error``, or the ``signal`` that killed it."""
        request = {"name": name, "ranks": ranks, "environment": environment or {}, "options": options}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


# In the interpreter -----------------------------------------------------------------------------------------------


def serve(module_name: str) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is no answer
    module = importlib.import_module(f"tests.integrations.{module_name}")
    import torch

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory() as folder:
            shared = {}
            if request["ranks"] > 1:
                shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
                shared |= {"WORLD_SIZE": str(request["ranks"]), "LOCAL_WORLD_SIZE": str(request["ranks"])}
            pids = []
            for rank in range(request["ranks"]):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if shared else {}
                answer = Path(folder) / str(rank)
                pid = os.fork()
                if not pid:
                    run_in_child(module, request, {**request["environment"], **shared, **own}, answer)
                pids.append(pid)
            outcomes = []
            for rank, pid in enumerate(pids):
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                path = Path(folder) / str(rank)
                outcomes.append(json.loads(path.read_text()) if path.exists() else {"signal": -status})
            for name in outcomes[0].pop("imported", ()):
                with contextlib.suppress(ImportError, AttributeError):
                    importlib.import_module(name)  # the next run starts with it
        answers.write(json.dumps(outcomes) + "\n")
        answers.flush()


def run_in_child(module: Any, request: dict[str, Any], environment: dict[str, str], answer: Path) -> None:
    """One rank of a run: never returns."""
    signal.alarm(PATIENCE_S)
    faulthandler.dump_traceback_later(PATIENCE_S - 20)
    os.environ.update(environment)
    sys.argv = ["run"]
    before = set(sys.modules)
    try:
        run = getattr(module, request["name"], None) or globals()[request["name"]]
        outcome = {"value": run(**request["options"])}
    except BaseException:
        outcome = {"error": traceback.format_exc()}
    outcome["imported"] = sorted(set(sys.modules) - before)
    partial = answer.with_suffix(".partial")
    partial.write_text(json.dumps(outcome))
    os.replace(partial, answer)
    sys.stderr.flush()
    os._exit(0)


def examples(module: str) -> int:
    """Run the examples in a module's docstrings, and count them."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.FAIL_FAST
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=flags)
    assert not failed, module
    return tried


if __name__ == "__main__":
    serve(sys.argv[1])
