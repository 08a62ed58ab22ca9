"""What changes when a function or a value does, so that a cache never takes a new one for an old one.

    function --code, defaults, closure, globals--> values and functions, and so on down to plain values
    value    --content-->                          never its address, never a text that leaves something out

A function of the user's is followed wherever it goes: functions it calls, functions inside of it, the user's modules. A
library is believed to be what its name and its version say. Whatever holds a state that nobody can read (an object, a
bound method, an open file) needs a version from the user.
"""

from __future__ import annotations

import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import importlib
import importlib.util
import logging
import pathlib
import re
import sys
import types
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from poolish.errors import RecipeError
from poolish.recipes.expressions import Expression

#: Values whose repr says all about them.
_SAID_BY_REPR = (
    *(type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), type(NotImplemented)),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID, pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath),
)
#: What every class has, and what says nothing about what it does.
_OF_EVERY_CLASS = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__"),
    *("_abc_impl", "__dataclass_fields__", "__dataclass_params__"),  # what they say is in the methods made of them
}


class CannotTell(RecipeError):
    """Nobody can tell whether something is still the same, because of what it ``uses``."""

    uses = ""


def cannot_tell(what: str, uses: str, advice: str) -> CannotTell:
    """The error, with what can be done about it."""
    error = CannotTell(
        f"{what}: nobody can tell whether this is still the same for a cache, because it uses {uses}; {advice}, "
        "and another number whenever it changes"
    )
    error.uses = uses
    return error


class _Unknown(Exception):
    """Something of which nobody can tell whether it is still the same; the text names it."""


def fingerprint_of(function: Callable[..., Any], name: str, version: Any) -> str:
    """What changes when a function does: its name and version if it has one, else its code and all that it uses.

    >>> def scaled(factor):
    ...     return lambda row: {**row, "x": row["x"] * factor}
    >>> fingerprint_of(scaled(2), "scale", None) == fingerprint_of(scaled(2), "scale", None)
    True
    >>> fingerprint_of(scaled(2), "scale", None) == fingerprint_of(scaled(3), "scale", None)
    False
    """
    return value_print(function, name) if version is None else f"version {version} of {_name_of(function)}"


def _name_of(function: Any) -> str:
    """What a function is called: a version is one of this function, and says nothing about another."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def options_print(options: Mapping[str, Any], name: str, version: Any = None) -> str:
    """What changes when an option does; the version speaks for those that nobody can tell apart."""
    return " ".join(f"{key}={value_print(options[key], name, version)}" for key in sorted(options))


def value_print(value: Any, name: str, version: Any = None) -> str:
    """What changes when a value does, by its content."""
    digest = _Digest()
    try:
        digest.add(value)
    except _Unknown as unknown:
        if version is not None:
            return f"version {version}"
        raise cannot_tell(f"step {name!r}", str(unknown), "pass version=1") from None
    return digest.hexdigest()


class _Digest:
    """A hash of values, and of all that these lead to."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=12)
        #: Functions and classes by identity, with their number: the second time that is all there is to say.
        self._seen: dict[int, tuple[int, Any]] = {}
        self._open: set[int] = set()

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        """One more value."""
        if type(value) in _SAID_BY_REPR:
            self._say(type(value).__name__, repr(value))
        elif _library_name(value) is not None:
            self._say("library", str(_library_name(value)))
        elif isinstance(value, (types.FunctionType, type)):
            self._once(value)
        elif not (self._is_collection(value) or self._is_array(value) or self._is_callable(value)):
            self._other(value)

    def _say(self, kind: str, content: str | bytes) -> None:
        # With its length, so that two values never run into each other.
        encoded = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        self._hash.update(f"{kind} {len(encoded)} ".encode() + encoded)

    def _once(self, value: Any) -> None:
        if id(value) in self._seen:
            self._say("again", str(self._seen[id(value)][0]))
            return
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, type):
            self._class(value)
        else:
            self._function(value)

    def _methods_of(self, kind: type) -> None:
        """The code of a class without its members, which for an enum are objects of the class itself."""
        for name, value in sorted(vars(kind).items()):
            if isinstance(value, (types.FunctionType, property, staticmethod, classmethod)) and not name.startswith(
                "_"
            ):
                self._say("member", name)
                self.add(value)

    # -- values that hold others

    def _is_collection(self, value: Any) -> bool:
        kind = type(value)
        if kind in (set, frozenset):
            # In the order of their own hashes: that of a set of texts is another in every process.
            self._say(kind.__name__, " ".join(sorted(_alone(each) for each in value)))
        elif kind in (list, tuple) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            self._all(kind.__name__, value, value)
            if kind not in (list, tuple):
                self.add(kind)  # a named tuple may have methods
        elif kind in (dict, OrderedDict, Counter, types.MappingProxyType):
            self._all(kind.__name__, value, [part for item in value.items() for part in item])
        else:
            return False
        return True

    def _all(self, kind: str, value: Any, parts: Any) -> None:
        if id(value) in self._open:
            raise _Unknown(f"a {kind} that holds itself")
        self._open.add(id(value))
        self._say(kind, str(len(parts)))
        for part in parts:
            self.add(part)
        self._open.remove(id(value))

    def _is_array(self, value: Any) -> bool:
        if type(value) in (np.ndarray, np.memmap):
            self._say("array", f"{value.dtype!r} {value.shape}")
            if value.dtype.hasobject:
                self.add(value.tolist())
            else:
                self._say("values", np.ascontiguousarray(value).tobytes())
        elif isinstance(value, np.generic) and not isinstance(value, np.object_):
            self._say(str(value.dtype), value.tobytes())
        elif isinstance(value, (pa.Table, pa.RecordBatch)):
            self._say("table", _as_stream(value))
        elif isinstance(value, (pa.Array, pa.ChunkedArray)):
            self._say("column", _as_stream(pa.table({"": value})))
        elif isinstance(value, pa.Scalar):
            self._say("scalar", _as_stream(pa.table({"": pa.array([value.as_py()], value.type)})))
        else:
            return False
        return True

    def _other(self, value: Any) -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        if isinstance(value, Expression):
            self._say("expression", str(value))
        elif isinstance(value, (np.dtype, pa.DataType, pa.Field, pa.Schema)):
            self._say(kind, str(value))
        elif isinstance(value, re.Pattern):
            self._say("pattern", f"{value.flags} {value.pattern!r}")
        elif isinstance(value, enum.Enum):
            self._say("enum", f"{kind} {value.name}")
            self.add(value.value)
            self._methods_of(type(value))
        elif isinstance(value, logging.Logger):
            self._say("logger", value.name)
        elif kind == "tokenizers.Tokenizer":
            self._say("tokenizer", value.to_str())
        else:
            raise _Unknown(_described(value))

    # -- what runs

    def _is_callable(self, value: Any) -> bool:
        if isinstance(value, functools.partial):
            self._say("partial", "")
            for part in (value.func, value.args, value.keywords):
                self.add(part)
        elif isinstance(value, (types.MethodType, types.BuiltinFunctionType)):
            owner = value.__self__
            is_known = isinstance(owner, type) or type(owner) in _SAID_BY_REPR
            if not is_known:
                raise _Unknown(f"{_described(value)}, which belongs to {_described(owner)}")
            self.add(owner)
            self._say("method", value.__name__)
            self.add(getattr(value, "__func__", None))
        elif isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            self.add(value.__objclass__)
            self._say("method", value.__name__)
        elif isinstance(value, (staticmethod, classmethod)):
            self.add(value.__func__)
        elif isinstance(value, property):
            self.add((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools._lru_cache_wrapper):
            self.add(value.__wrapped__)
        else:
            return False
        return True

    def _function(self, function: types.FunctionType) -> None:
        self._code(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._say("closure", name)
            self._cell(cell)
        attributes = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        self.add(attributes)
        names = _all_names(function.__code__)
        for name in sorted(_globals_of(function.__code__)):
            self._say("global", name)
            self._global(name, function, names)
        for module in sorted(_imports_of(function.__code__, function.__globals__.get("__package__") or "")):
            self._say("import", module)
            self._module(_imported(module), names)

    def _cell(self, cell: Any) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not set yet
            self._say("cell", "empty")
        else:
            self.add(value)

    def _global(self, name: str, function: types.FunctionType, names: set[str]) -> None:
        if name not in function.__globals__:
            self._say("built in", name)
            return
        value = function.__globals__[name]
        try:
            self._module(value, names) if isinstance(value, types.ModuleType) else self.add(value)
        except _Unknown as unknown:
            raise _Unknown(f"{name!r}: {unknown}" if repr(name) not in str(unknown) else str(unknown)) from None

    def _module(self, module: types.ModuleType | None, names: set[str]) -> None:
        """Of a module of the user's whatever has a name that the code speaks of."""
        if module is None or _is_library(module.__name__):
            self._say("module", "" if module is None else _versioned(module.__name__))
            return
        if id(module) in self._seen:
            return
        self._seen[id(module)] = len(self._seen), module
        self._say("module", module.__name__)
        for name in sorted(names & vars(module).keys()):
            self._say("attribute", name)
            value = getattr(module, name)
            self._module(value, names) if isinstance(value, types.ModuleType) else self.add(value)
        del self._seen[id(module)]  # another function may speak of other names

    def _code(self, code: types.CodeType) -> None:
        self._say("code", code.co_code + code.co_exceptiontable)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.add((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, counts))
        for constant in code.co_consts:
            self._code(constant) if isinstance(constant, types.CodeType) else self.add(constant)

    def _class(self, kind: type) -> None:
        self._say("class", kind.__qualname__)
        for base in kind.__bases__:
            self.add(base)
        for name, value in sorted(vars(kind).items()):
            if name not in _OF_EVERY_CLASS and not isinstance(
                value, (types.MemberDescriptorType, types.GetSetDescriptorType)
            ):
                self._say("member", name)
                self.add(value)


def _alone(value: Any) -> str:
    digest = _Digest()
    digest.add(value)
    return digest.hexdigest()


def _as_stream(table: pa.Table | pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    whole = table.combine_chunks() if isinstance(table, pa.Table) else table
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write(whole)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _described(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return f"{name!r}" if isinstance(name, str) else f"an object of type {type(value).__qualname__!r}"


# Code and the names in it --------------------------------------------------------------------------------------------


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of all functions and comprehensions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _all_names(code: types.CodeType) -> set[str]:
    return {name for each in _codes(code) for name in each.co_names}


def _globals_of(code: types.CodeType) -> set[str]:
    found = (step for each in _codes(code) for step in dis.get_instructions(each))
    return {step.argval for step in found if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def _imports_of(code: types.CodeType, package: str) -> set[str]:
    """The modules that are imported where the function runs."""
    found = set()
    for each in _codes(code):
        steps = list(dis.get_instructions(each))
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level = steps[i - 2].argval  # the level, the names, then the import
                is_relative = isinstance(level, int) and level > 0
                found.add(
                    importlib.util.resolve_name("." * level + step.argval, package) if is_relative else step.argval
                )
    return found


def _imported(name: str) -> types.ModuleType | None:
    """A module of the user's, loaded as the function would load it; a library is known by its name."""
    if name in sys.modules or _is_library(name):
        return sys.modules.get(name)
    try:
        return importlib.import_module(name)
    except Exception:  # the function will say so itself
        return None


# Libraries -----------------------------------------------------------------------------------------------------------


def _library_name(value: Any) -> str | None:
    """The name and version of something that a library has under that name; None for everything else."""
    if isinstance(value, types.ModuleType):
        return _versioned(value.__name__) if _is_library(value.__name__) else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if isinstance(value, types.BuiltinFunctionType) and module is None:
        return None
    if not isinstance(module, str) or not isinstance(name, str) or not _is_library(module):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # By name only if it is what the name stands for: a library may have made it around a function of the user's.
    return f"{_versioned(module)} {name}" if found is value else None


def _versioned(module: str) -> str:
    top = sys.modules.get(module.partition(".")[0])
    return f"{module} {getattr(top, '__version__', '')}"


@functools.cache
def _is_library(module: str) -> bool:
    """Whether a module comes with Python, with poolish or from where packages are installed."""
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    if top in sys.stdlib_module_names or top in sys.builtin_module_names or top == "poolish":
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    places = [] if spec is None else [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any("site-packages" in place or "dist-packages" in place for place in places)
