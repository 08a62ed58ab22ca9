"""``show_versions`` says what a bug report needs, and loads nothing for it."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from importlib import metadata

import pytest

import poolish
from poolish import versions


def test_report_names_poolish_its_core_and_the_machine():
    """One line each, in a fixed order, with the versions that pip sees."""
    file = io.StringIO()

    poolish.show_versions(file=file)

    lines = dict(line.split(maxsplit=1) for line in file.getvalue().splitlines())
    assert list(lines)[:4] == ["poolish", "kernels", "python", "platform"]
    assert lines["poolish"] == poolish.__version__
    assert {name: lines[name] for name in versions.CORE} == {name: metadata.version(name) for name in versions.CORE}


def test_core_is_what_the_package_requires():
    """The list of core libraries cannot fall behind the package's own."""
    requires = [line for line in metadata.requires("poolish") or [] if "extra ==" not in line]

    assert {re.split(r"[^\w-]", line)[0].lower() for line in requires} == set(versions.CORE)


def test_missing_libraries(monkeypatch: pytest.MonkeyPatch):
    """A core library that is missing is news; an optional one is not."""
    monkeypatch.setattr(versions, "CORE", ("no-such-core",))
    monkeypatch.setattr(versions, "OPTIONAL", ("no-such-extra",))

    report = versions.installed_versions()

    assert report["no-such-core"] == "missing"
    assert "no-such-extra" not in report


@pytest.mark.parametrize(("pure", "answer"), [("1", "reference (POOLISH_PURE is set)"), ("0", None), ("", None)])
def test_kernels_are_native_unless_asked_not_to_be(pure: str, answer: str | None):
    """The report tells which kernels answer, and why it is the reference."""
    script = "from poolish.versions import *; print(installed_versions()['kernels'])"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"POOLISH_PURE": pure}, capture_output=True, text=True, check=True
    )

    if answer is not None:
        assert done.stdout.strip() == answer
    else:
        assert done.stdout.split()[0] in {"native", "reference"}
        assert "POOLISH_PURE" not in done.stdout
