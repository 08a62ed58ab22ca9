"""What all tests share: hypothesis profiles, one thread for torch, and which tests are about the kernels."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import IS_QUICK, IS_SOAK, SOAK_MINUTES, times
from tests.soak_clock import SoakClock

ROOT = Path(__file__).resolve().parent.parent

# Two test processes on two cores: with its default threads torch is 18 times slower than with one. torch reads
# this when it is loaded, so tests that never need torch do not load it, and child processes do as we do.
# (OMP_NUM_THREADS would quiet Arrow's threads as well, and with them the races that we want to see.)
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")

# Random on every run, so that each looks somewhere new; a failure prints the line that repeats it. Where a change is
# judged (CI), the examples are the same each time: what was found elsewhere must not fail somebody's unrelated change.
settings.register_profile(
    "push",
    max_examples=50,
    derandomize=os.environ.get("CI", "") not in ("", "0") and not IS_SOAK,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", settings.get_profile("push"), max_examples=times(100))
settings.register_profile("quick", settings.get_profile("push"), max_examples=10)
settings.load_profile("soak" if IS_SOAK else "quick" if IS_QUICK else "push")

#: Packages whose answers come out of the kernels: their tests and doctests run on both kinds. Where only some modules
#: of a package lean on them, those set ``pytestmark = pytest.mark.kernels`` themselves.
KERNEL_PACKAGES = {"seeds"}

#: Left out of ``make quick``: they kill, fork, start interpreters, load large libraries or try very often.
SLOW_FOLDERS = {"examples", "compatibility", "integrations"}
SLOW_MODULES = {
    *("test_build", "test_documents", "test_hub", "test_install", "test_seed_programs", "test_short_writes"),
    *("test_architecture", "test_soak_clock", "test_prepare", "test_new", "test_bake", "test_damage"),
    *("test_kills", "test_power_loss", "test_interrupts", "test_full_disk", "test_queue_faults", "test_processes"),
    *("test_threads", "test_memory", "test_memory_limits", "test_ddp", "test_exactly_once", "test_runs"),
    *(
        "test_accumulation",
        "test_gather",
        "test_histories",
        "test_loader_processes",
        "test_loader_runs",
        "test_loader_torch",
    ),
    *("test_loader_torch", "test_model", "test_hf", "test_saved", "test_torch", "test_dtypes", "test_incremental"),
    *("test_drift", "test_fitted_outliers", "test_detectors", "test_provider", "test_watching", "test_cached"),
    "test_timeouts",
    *(
        "test_directories",
        "test_distributions",
        "test_workspace",
        "test_window_dataset",
        "test_memmap_buffer",
        "test_breaks",
    ),
    *("test_journal", "test_identity", "test_file_sources", "test_sources", "test_canary", "test_engine"),
    *("test_alignment", "test_verify_resume", "test_lazy_sources", "test_storage_options"),
}


def pytest_configure(config: pytest.Config) -> None:
    """Hear Ctrl-C, in child processes too, and watch the clock in a soak that has an end."""
    # A shell starts background jobs with SIGINT ignored, and children inherit that: `make soak &` would fail where a
    # test interrupts a process.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if SOAK_MINUTES:
        config.pluginmanager.register(SoakClock(SOAK_MINUTES))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """The directory that appears if a ``poolish.testing.Canary`` was unpickled."""
    return tmp_path / "was-here"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what leans on the kernels and what is slow; leave some tests to ``make soak`` or to machines with a GPU."""
    for item in items:
        if package_of(item.path) in KERNEL_PACKAGES:
            item.add_marker(pytest.mark.kernels)
        if package_of(item.path) in SLOW_FOLDERS or item.path.stem in SLOW_MODULES:
            item.add_marker(pytest.mark.slow)
    left_out = {"soak": IS_SOAK, "cuda": os.path.exists("/dev/nvidiactl")}
    others = [item for item in items if any(item.get_closest_marker(name) and not on for name, on in left_out.items())]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and tests are no garbage: a collection that looks at them all takes 0.3 s, and copies them in a fork."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def young_heap() -> Iterator[None]:
    """The same for what a module of tests has imported and left behind: the next one's collections pass over it.

    Tests that collect at each of hundreds of points took ten times as long late in a run as alone.
    """
    yield
    gc.collect()
    gc.freeze()


def package_of(path: Path) -> str:
    """The part of poolish that a file is in or about: ``rows`` for src/poolish/rows/x.py and tests/rows/test_x.py."""
    for folder in (ROOT / "src" / "poolish", ROOT / "tests"):
        if path.is_relative_to(folder):
            return path.relative_to(folder).parts[0].removesuffix(".py").removeprefix("test_")
    return ""
