"""The error tree: two parents each, plain messages, safe to send between processes."""

from __future__ import annotations

import copy
import errno as codes
import pickle
import subprocess
import sys

import pytest

import poolish
from poolish import errors

BUILTIN_PARENT = {
    errors.PoolishError: Exception,
    errors.SchemaError: ValueError,
    errors.NumberTooLarge: OverflowError,
    errors.BadText: UnicodeError,
    errors.UnknownColumn: KeyError,
    errors.DataRefused: ValueError,
    errors.CorruptDataError: ValueError,
    errors.StoreLocked: BlockingIOError,
    errors.StoreFull: OSError,
    errors.DurabilityLost: OSError,
    errors.QueueError: RuntimeError,
    errors.QueueNotFound: FileNotFoundError,
    errors.StaleSchema: ValueError,
    errors.Starved: TimeoutError,
    errors.PacingTimeout: TimeoutError,
    errors.ConfigError: ValueError,
    errors.RecipeError: ValueError,
    errors.Unfingerprintable: ValueError,
    errors.ResumeError: ValueError,
    errors.LimitExceeded: ValueError,
    errors.BudgetSpent: RuntimeError,
    errors.CircuitOpen: ConnectionError,
}
SYSTEM_CODE = {
    errors.StoreLocked: codes.EAGAIN,
    errors.StoreFull: codes.ENOSPC,
    errors.DurabilityLost: codes.EIO,
    errors.QueueNotFound: codes.ENOENT,
    errors.Starved: codes.ETIMEDOUT,
    errors.PacingTimeout: codes.ETIMEDOUT,
}
SCHEMA_ERRORS = [errors.NumberTooLarge, errors.BadText, errors.UnknownColumn]
QUEUE_ERRORS = [errors.QueueNotFound, errors.StaleSchema, errors.Starved]
MESSAGE = "row 3, column 'reward': got 'x'\nnext line, café"

every_error = pytest.mark.parametrize("kind", BUILTIN_PARENT)
every_system_error = pytest.mark.parametrize("kind", SYSTEM_CODE)


def test_every_error_of_the_module_is_in_these_tests():
    """A new error cannot be added without saying here which builtin it is."""
    assert set(errors.__all__) == {kind.__name__ for kind in BUILTIN_PARENT}


@every_error
def test_every_error_is_at_the_top_of_the_package(kind):
    """``from poolish import Starved`` finds what a program catches."""
    assert getattr(poolish, kind.__name__) is kind


@every_error
def test_either_except_catches_it(kind):
    """A caller may catch poolish's root or the builtin that fits."""
    for parent in (errors.PoolishError, BUILTIN_PARENT[kind]):
        with pytest.raises(parent):
            raise kind(MESSAGE)


@pytest.mark.parametrize(("family", "kinds"), [(errors.SchemaError, SCHEMA_ERRORS), (errors.QueueError, QUEUE_ERRORS)])
def test_a_family_catches_its_members(family, kinds):
    """``except SchemaError`` and ``except QueueError`` catch everything below them."""
    assert all(issubclass(kind, family) for kind in kinds)


@every_error
def test_text_of_an_error_is_its_message(kind):
    """No errno prefix, no quotes around the message."""
    assert str(kind(MESSAGE)) == MESSAGE
    assert str(kind()) == ""


@every_error
@pytest.mark.parametrize("send", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_errors_survive_the_way_to_another_process(kind, send):
    """Type, message and notes arrive."""
    error = kind(MESSAGE)
    error.add_note("while baking ingredient 'web', row 7")

    arrived = send(error)

    assert type(arrived) is kind
    assert str(arrived) == MESSAGE
    assert arrived.__notes__ == ["while baking ingredient 'web', row 7"]


@every_system_error
def test_system_errors_carry_the_code_a_caller_would_look_for(kind):
    """``error.errno`` is set without asking; the file may be named beside the message."""
    error = kind(MESSAGE)

    assert (error.errno, error.filename) == (SYSTEM_CODE[kind], None)


@every_system_error
def test_system_errors_keep_their_own_code_and_file(kind, tmp_path):
    """EDQUOT stays EDQUOT, after pickling too, and the message stays plain."""
    error = kind(MESSAGE, errno=codes.EDQUOT, filename=tmp_path / "data")

    arrived = pickle.loads(pickle.dumps(error))

    assert (arrived.errno, arrived.filename) == (codes.EDQUOT, str(tmp_path / "data"))
    assert str(arrived) == str(error) == MESSAGE


def test_errors_load_nothing_heavy():
    """``except poolish.errors.StoreFull`` costs no import of numpy or pyarrow."""
    program = "import sys, poolish.errors; print(sorted({'numpy', 'pyarrow', 'torch'} & set(sys.modules)))"

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "[]"
