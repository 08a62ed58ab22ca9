"""Fingerprints of functions and objects: a cache key changes whenever something that decides a result does.

    function   code, defaults, closure, attributes, and the globals and modules that its code names
    class      its members, bases and metaclass
    object     its class and its state, as pickle would save them, with attributes that pickling leaves out; or what its
               ``__fingerprint__()`` returns
    data       its content, never its address

User code is followed through every function, class and module it reaches. An installed package is identified by name
and version. State that cannot be read (an open file, a lock, a random generator) raises ``Unfingerprintable``, and the
user passes a version instead. One digest serves recipes, disk caches and filters.
"""

from __future__ import annotations

import builtins
import copyreg
import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import logging
import os
import pathlib
import platform
import random
import sys
import sysconfig
import threading
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from poolish import torch_bridge
from poolish.errors import ConfigError, Unfingerprintable

#: Types whose repr is exact and the same in every process.
_EXACT_REPR = {
    *(type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), type(NotImplemented)),
    *(datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
}
#: Class members without influence on what a class does: bookkeeping, and the line that it begins on.
_BOOKKEEPING = {
    *("__dict__", "__weakref__", "__module__", "__qualname__", "_abc_impl"),
    *("__firstlineno__", "__static_attributes__", "__annotate__", "__annotate_func__", "__annotations_cache__"),
}
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
#: Their state moves with every call, so it identifies nothing.
_MOVING = (Iterator, random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState)
#: Built-in functions that reach names no analysis of the code can find.
_DYNAMIC = ("globals", "eval", "exec", "__import__")
#: Attributes that do, whatever they belong to.
_DYNAMIC_ATTRIBUTES = {"__subclasses__", "__globals__", "f_globals", "f_back"}
#: Members of modules that do.
_DYNAMIC_MEMBERS = {
    "importlib": {"import_module", "__import__"},
    "sys": {"modules", "_getframe"},
    "builtins": set(_DYNAMIC),
    "inspect": {"currentframe", "stack"},
    "gc": {"get_objects", "get_referrers"},
    "pkgutil": {"resolve_name"},
    "runpy": {"run_module", "run_path"},
}
#: They only keep threads apart, so an object may leave them out.
_LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Semaphore)
_SINGLEDISPATCH = functools.singledispatch(lambda value: value).__code__  # type: ignore[attr-defined]
_TYPE_PARAMETERS = (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple)
#: Containers that are hashed by content, wherever they are.
_CONTAINERS = (list, tuple, set, frozenset, dict, types.MappingProxyType)
#: Data in memory is identified by its content up to this many values and bytes: about a second of hashing.
MAX_VALUES, MAX_BYTES = 1_000_000, 1 << 28
_PASS_VERSION = "pass version=1, and another number whenever it changes"


class _Unknown(Exception):
    """Something that cannot be fingerprinted; the text names it."""


def fingerprint(
    value: Any,
    what: str,
    *,
    version: Any = None,
    advice: str = _PASS_VERSION,
    max_values: int | None = None,
    max_bytes: int | None = None,
) -> str:
    """A digest of the content of ``value``; ``version`` replaces the content where that cannot be read.

    ``what`` names the value in the error, ``advice`` is what the user can do about it. More than ``max_values`` values
    or ``max_bytes`` bytes count as content that cannot be read.

    >>> fingerprint([1, 2], "a list") == fingerprint([1, 2], "a list") != fingerprint([2, 1], "a list")
    True
    >>> import threading
    >>> fingerprint(threading.Lock(), "step 'read'")
    Traceback (most recent call last):
    poolish.errors.Unfingerprintable: step 'read': cannot be fingerprinted for a cache, because it uses an object ...
    """
    digest = _Digest(max_values=max_values, max_bytes=max_bytes)
    try:
        digest.add(value)
    except (_Unknown, RecursionError, Unfingerprintable) as unknown:
        if version is not None:
            return f"version {version}"
        if isinstance(unknown, Unfingerprintable):  # of a part, which it names
            raise
        uses = str(unknown) if isinstance(unknown, _Unknown) else "values nested too deeply"
        raise unfingerprintable(what, uses, advice) from None
    return digest.hexdigest()


def function_fingerprint(
    function: Callable[..., Any], what: str, version: Any = None, *, advice: str = _PASS_VERSION
) -> str:
    """The name and version of a function that has a version, else a digest of its code and of everything it uses.

    >>> def scaled(factor):
    ...     return lambda row: {**row, "x": row["x"] * factor}
    >>> function_fingerprint(scaled(2), "step 'scale'") == function_fingerprint(scaled(2), "step 'scale'")
    True
    >>> function_fingerprint(scaled(2), "step 'scale'") == function_fingerprint(scaled(3), "step 'scale'")
    False
    >>> function_fingerprint(str.upper, "step 'shout'", version=2)
    'version 2 of builtins.str.upper'
    """
    if version is None:
        return fingerprint(function, what, advice=advice)
    return f"version {version} of {qualified_name(function)}"


def options_fingerprint(options: Mapping[str, Any], what: str, version: Any = None) -> str:
    """Digests of the values of options, by name; the version replaces those that cannot be read."""
    return " ".join(f"{key}={fingerprint(options[key], what, version=version)}" for key in sorted(options))


def declared_version(function: Any) -> Any:
    """The attribute ``version`` of a function or callable object, where it is text or a number; else None."""
    own = getattr(function, "version", None)
    return own if isinstance(own, (str, int, float)) else None


def check_attributes(function: Any, what: str) -> None:
    """Raise a ConfigError if asking a callable for an attribute fails, as for a ``__getattr__`` that looks in a dict.

    >>> class Step(dict):
    ...     __getattr__ = dict.__getitem__
    >>> check_attributes(Step(), "step 'knead'")
    Traceback (most recent call last):
    poolish.errors.ConfigError: step 'knead': Step.__getattr__('__wrapped__') raises KeyError('__wrapped__'); ...
    """
    try:
        getattr(function, "__wrapped__", None)
    except Exception as error:
        kind = type(function).__qualname__
        raise ConfigError(
            f"{what}: {kind}.__getattr__('__wrapped__') raises {error!r}; let it raise AttributeError for names "
            "that it does not have"
        ) from error


def unfingerprintable(what: str, uses: str, advice: str) -> Unfingerprintable:
    """The error, with what the user can do about it."""
    error = Unfingerprintable(f"{what}: cannot be fingerprinted for a cache, because it uses {uses}; {advice}")
    error.uses = uses
    return error


def qualified_name(function: Any) -> str:
    """The module and name of a function, class or callable object; of a partial, that of its function."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or getattr(getattr(named, "__objclass__", None), "__module__", "")
    return f"{module}.{named.__qualname__}"


class _Digest:
    """A hash of values and of everything they reach."""

    def __init__(self, *, max_values: int | None = None, max_bytes: int | None = None) -> None:
        self._hash = hashlib.blake2b(digest_size=12)
        #: Functions, classes and objects by identity: a number to refer to them, and what keeps the identity taken.
        self._seen: dict[Any, tuple[int, Any]] = {}
        #: Containers that are being visited, by identity, so that cycles end.
        self._open: dict[int, int] = {}
        self._max_values, self._max_bytes = max_values, max_bytes
        self._n_values = self._n_bytes = 0

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        """Hash one more value."""
        self._n_values += 1
        if self._max_values is not None and self._n_values > self._max_values:
            raise _Unknown(f"more than {self._max_values:,} values")
        kind = type(value)
        if kind in _EXACT_REPR:
            self._say(kind.__name__, repr(value))
        elif (dynamic := _dynamic_name(value)) is not None:
            raise _Unknown(_reaches(dynamic))
        elif kind in _CONTAINERS:
            self._container(kind, value)
        elif (name := _library_name(value)) is not None:
            self._say("library", name)
        elif kind is types.CodeType:
            self._code(value)
        elif kind in (types.MethodType, types.BuiltinFunctionType):
            self._bound(value)
        elif not self._is_array(value) and not self._was_seen(id(value), value):
            self._visit(value)

    def _say(self, kind: str, content: str | bytes) -> None:
        # The length precedes the content, so two values never run into each other.
        encoded = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        self._n_bytes += len(encoded)
        if self._max_bytes is not None and self._n_bytes > self._max_bytes:
            raise _Unknown(f"more than {self._max_bytes:,} bytes")
        self._hash.update(f"{kind} {len(encoded)} ".encode() + encoded)

    def _was_seen(self, key: Any, value: Any) -> bool:
        """Whether it was visited before; then a reference to that is hashed."""
        if key in self._seen:
            self._say("again", str(self._seen[key][0]))
            return True
        self._seen[key] = len(self._seen), value
        return False

    def _visit(self, value: Any) -> None:
        if isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType):
            self._function(value)
        else:
            self._object(value)

    # -- data

    def _container(self, kind: type, value: Any) -> None:
        if id(value) in self._open:
            self._say("cycle", str(self._open[id(value)]))
            return
        self._open[id(value)] = len(self._open)
        if kind in (set, frozenset):
            # Sorted by digest: the order of a set differs between processes.
            self._say(kind.__name__, " ".join(sorted(self._alone(each) for each in value)))
        else:
            parts = value if kind in (list, tuple) else [part for item in value.items() for part in item]
            self._say(kind.__name__, str(len(parts)))
            for part in parts:
                self.add(part)
        del self._open[id(value)]

    def _alone(self, value: Any) -> str:
        """A digest of one element of a set, which does not depend on the others."""
        digest = _Digest(max_values=self._max_values, max_bytes=self._max_bytes)
        digest._n_values, digest._n_bytes = self._n_values, self._n_bytes
        if type(value) not in _EXACT_REPR:
            digest._seen, digest._open = dict(self._seen), dict(self._open)
        digest.add(value)
        self._n_values, self._n_bytes = digest._n_values, digest._n_bytes
        return digest.hexdigest()

    def _is_array(self, value: Any) -> bool:
        if type(value) in (np.ndarray, np.memmap) or isinstance(value, np.generic):
            self._say("array", str(value.shape))
            self._dtype(value.dtype)
            if value.dtype.hasobject:
                self.add(value.tolist())
            else:
                self._say("values", np.ascontiguousarray(value).tobytes())
        elif isinstance(value, np.dtype):
            self._dtype(value)
        elif isinstance(value, (pa.Table, pa.RecordBatch)):
            self._say("table", _as_stream(value))
        elif isinstance(value, (pa.Array, pa.ChunkedArray)):
            self._say("column", _as_stream(pa.table({"": value})))
        elif isinstance(value, pa.Scalar):
            self._say("scalar", _as_stream(pa.table({"": pa.array([value.as_py()], value.type)})))
        elif isinstance(value, (pa.DataType, pa.Field, pa.Schema)):
            self._arrow_type(value)
        elif _is_tensor(value):
            self._tensor(value)
        else:
            return False
        return True

    def _dtype(self, dtype: np.dtype[Any]) -> None:
        self._say("dtype", f"{dtype!r} {dtype.isalignedstruct}")
        self.add(dict(dtype.metadata or {}))
        if dtype.subdtype is not None:
            self._dtype(dtype.subdtype[0])
        for name in dtype.names or ():
            self._dtype(dtype[name])

    def _arrow_type(self, value: Any) -> None:
        # Serialised, with all metadata: the text of a schema leaves some of it out.
        self._say("arrow", type(value).__name__)
        field = pa.field("", value) if isinstance(value, pa.DataType) else value
        schema = field if isinstance(field, pa.Schema) else pa.schema([field])
        self._say("schema", schema.serialize().to_pybytes())

    def _tensor(self, value: Any) -> None:
        self._say("tensor", f"{type(value).__qualname__} {value.dtype} {tuple(value.shape)} {value.requires_grad}")
        try:
            flat = value.detach().cpu().contiguous().reshape(-1)
            content = flat.view(torch_bridge.loaded().uint8).numpy().tobytes()
        except (RuntimeError, TypeError):  # quantised, or without storage
            raise _Unknown(_described(value)) from None
        self._say("values", content)
        self._attributes(vars(value))

    # -- objects

    def _object(self, value: Any) -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        self._say("object", kind)
        if isinstance(value, types.ModuleType):
            raise _Unknown(f"the module {value.__name__!r} as a value")
        if isinstance(value, _MOVING) or _is_torch_generator(value):
            raise _Unknown(f"{_described(value)}, whose state changes with every call")
        own = getattr(type(value), "__fingerprint__", None)
        stands_for = NotImplemented if own is None else own(value)
        if stands_for is not NotImplemented:
            self.add(stands_for)
        elif isinstance(value, enum.Enum):
            self.add((value.name, value.value, type(value)))
        elif type(value) in (staticmethod, classmethod):
            self.add((value.__func__, vars(value)))
        elif type(value) is property:
            self.add((value.fget, value.fset, value.fdel))
        elif isinstance(value, functools.cached_property):
            self.add((type(value), {name: each for name, each in vars(value).items() if name != "lock"}))
        elif isinstance(value, functools._lru_cache_wrapper):
            self.add((value.cache_parameters(), vars(value)))
        elif isinstance(value, (logging.Logger, *_TYPE_PARAMETERS)):
            self._say("name", repr(getattr(value, "name", value)))
        elif kind == "tokenizers.Tokenizer":
            self._say("tokenizer", value.to_str())
        elif kind.startswith("datasets.") and isinstance(getattr(value, "_fingerprint", None), str):
            self._say("Hugging Face", value._fingerprint)
        else:
            self._state(value)

    def _state(self, value: Any) -> None:
        """Class and state, as pickle would save them: Python refuses where part of the state is hidden in C."""
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:
            raise _Unknown(_described(value)) from None
        if isinstance(reduced, str):
            self._named(value, reduced)
            return
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        self.add(type(value))
        try:
            self.add(make)
            self.add((arguments, list(items or ()), [part for pair in pairs or () for part in pair]))
            self._attributes(state)
            if _pickles_itself(type(value)):
                self._attributes(_own_attributes(value))
        except _Unknown as unknown:
            raise _Unknown(f"{_described(value)}, which holds {unknown}") from None

    def _attributes(self, state: Any) -> None:
        if type(state) is not dict:
            self.add(state)
            return
        # Sorted: attributes set in another order are the same attributes.
        for name in sorted(state, key=repr):
            self.add(name)
            self.add(state[name])

    def _named(self, value: Any, name: str) -> None:
        """An object that is saved as the name of a global: of a library, or nothing is known of it."""
        members = {place: getattr(module, "__dict__", {}) for place, module in list(sys.modules.items())}
        library = next(
            (place for place in sorted(members) if members[place].get(name) is value and _is_library(place)), None
        )
        if library is None:
            raise _Unknown(_described(value))
        self._say("library", f"{_versioned(library)} {name}")

    # -- what runs

    def _bound(self, value: Any) -> None:
        owner = value.__self__
        if isinstance(owner, types.ModuleType):
            raise _Unknown(f"{_described(value)} of the compiled module {owner.__name__!r}")
        self._say("method", value.__name__)
        try:
            self.add(owner)
        except _Unknown as unknown:
            raise _Unknown(f"{_described(value)}, which belongs to {unknown}") from None
        self.add(getattr(value, "__func__", None))

    def _function(self, function: types.FunctionType) -> None:
        self._say("function", function.__name__)
        if function.__code__ is _SINGLEDISPATCH:
            self._singledispatch(function)
            return
        self._code(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__, _annotations(function)))
        names = _all_names(function.__code__)
        for name in sorted(_DYNAMIC_ATTRIBUTES & names):
            raise _Unknown(_reaches(f"the attribute {name}"))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._say("closure", name)
            self._cell(name, cell, names)
        self._attributes(vars(function))
        for name in sorted(_globals_of(function.__code__)):
            self._say("global", name)
            self._global(name, function, names)
        for module in sorted(_imports_of(function.__code__, function.__globals__)):
            self._say("import", module)
            self._module(_imported(module), names)

    def _singledispatch(self, function: Any) -> None:
        # Its closure also holds a cache of what it was called with.
        implementations = function.registry.items()
        for kind, implementation in sorted(implementations, key=lambda item: qualified_name(item[0])):
            self.add((kind, implementation))

    def _cell(self, name: str, cell: Any, names: set[str]) -> None:
        try:
            value = cell.cell_contents
        except ValueError:
            self._say("cell", "empty")
        else:
            self._reached(name, value, names)

    def _global(self, name: str, function: types.FunctionType, names: set[str]) -> None:
        if name in function.__globals__:
            self._reached(name, function.__globals__[name], names)
        elif name in _DYNAMIC:
            raise _Unknown(_reaches(f"{name}()"))
        elif hasattr(builtins, name):
            self._reached(name, getattr(builtins, name), names)
        else:
            self._say("undefined", name)

    def _reached(self, name: str, value: Any, names: set[str]) -> None:
        """What a name in the code stands for."""
        try:
            self._module(value, names) if isinstance(value, types.ModuleType) else self.add(value)
        except _Unknown as unknown:
            raise _Unknown(f"{name!r}: {unknown}" if repr(name) not in str(unknown) else str(unknown)) from None

    def _module(self, module: types.ModuleType | None, names: set[str]) -> None:
        """Of a module of the user's, everything with a name that the code contains."""
        if module is None:
            self._say("module", "")
            return
        if _is_library(module.__name__):
            self._say("module", _versioned(module.__name__))
            self._library_members(module, names)
            return
        self._say("module", module.__name__)
        # By names too: another function may use other names of a package that is still being visited.
        if self._was_seen((id(module), frozenset(names)), module):
            return
        members = vars(module)
        lazily = {"__getattr__"} if "__getattr__" in members else set()
        for name in sorted((names | lazily) & members.keys()):
            self._say("attribute", name)
            self._reached(name, members[name], names)

    def _library_members(self, module: types.ModuleType, names: set[str]) -> None:
        """What a library's module has under a name in the code and may have got from the user: numbers, functions."""
        for name in sorted(names & vars(module).keys()):
            if name in _DYNAMIC_MEMBERS.get(module.__name__, ()):
                raise _Unknown(_reaches(f"{module.__name__}.{name}"))
            value = vars(module)[name]
            is_code = isinstance(value, (types.FunctionType, type)) and not _is_library(value.__module__)
            if is_code or type(value) in _EXACT_REPR:
                self._say("attribute", name)
                self.add(value)

    def _code(self, code: types.CodeType) -> None:
        self._say("code", code.co_code + code.co_exceptiontable)
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        self.add((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, counts, code.co_consts))

    def _class(self, kind: type) -> None:
        self._say("class", kind.__qualname__)
        self.add(type(kind))
        for base in kind.__bases__:
            self.add(base)
        for name, value in sorted(vars(kind).items()):
            if name not in _BOOKKEEPING and not isinstance(value, _SLOTS):
                self._say("member", name)
                self.add(value)


def _as_stream(table: pa.Table | pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    whole = table.combine_chunks() if isinstance(table, pa.Table) else table
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write(whole)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _is_tensor(value: Any) -> bool:
    torch = torch_bridge.loaded()
    return torch is not None and isinstance(value, torch.Tensor) and value.layout is torch.strided


def _is_torch_generator(value: Any) -> bool:
    torch = torch_bridge.loaded()
    return torch is not None and isinstance(value, torch.Generator)


def _pickles_itself(kind: type) -> bool:
    """Whether code of the user's decides what pickle saves of an object, and so may leave something out."""
    reduce = copyreg.dispatch_table.get(kind)
    if reduce is not None and not _is_library(reduce.__module__):
        return True
    own = ("__getstate__", "__reduce__", "__reduce_ex__")
    return any(name in vars(each) and not _is_library(each.__module__) for each in kind.__mro__ for name in own)


def _own_attributes(value: Any) -> dict[str, Any]:
    slots: Iterable[str] = copyreg._slotnames(type(value))  # type: ignore[attr-defined]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    return {name: each for name, each in found.items() if not isinstance(each, _LOCKS)}


def _dynamic_name(value: Any) -> str | None:
    """The name of something that gives access to every module or to any code."""
    if value is sys.modules:
        return "sys.modules"
    is_function = isinstance(value, (types.FunctionType, types.BuiltinFunctionType))
    module = getattr(value, "__module__", None) if is_function else None
    is_dynamic = isinstance(module, str) and value.__name__ in _DYNAMIC_MEMBERS.get(module, ())
    return f"{module}.{value.__name__}" if is_dynamic else None


def _reaches(dynamic: str) -> str:
    return f"{dynamic}, which reaches names that only a run finds"


def _annotations(function: types.FunctionType) -> Any:
    try:
        return function.__annotations__
    except NameError:  # evaluated lazily since Python 3.14, and of names for type checkers only
        return getattr(function, "__annotate__", None)


def _described(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return f"{name!r}" if isinstance(name, str) else f"an object of type {type(value).__qualname__!r}"


# Code and the names in it --------------------------------------------------------------------------------------------


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of all functions, classes and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _all_names(code: types.CodeType) -> set[str]:
    """The names in the code, and its text constants: ``getattr(module, "K")`` names K too."""
    texts = {text for each in _codes(code) for text in each.co_consts if isinstance(text, str)}
    return texts | {name for each in _codes(code) for name in each.co_names}


def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return [each for each in dis.get_instructions(code) if each.opname not in ("EXTENDED_ARG", "CACHE")]


def _globals_of(code: types.CodeType) -> set[str]:
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    return {step.argval for each in _codes(code) for step in _instructions(each) if step.opname in loads}


def _imports_of(code: types.CodeType, names: Mapping[str, Any]) -> set[str]:
    """The modules that the code imports when it runs, with the packages they are in and the submodules they give."""
    found: set[str] = set()
    for each in _codes(code):
        steps = _instructions(each)
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                level, wanted = steps[i - 2].argval, steps[i - 1].argval
                found |= _modules_of(step.argval, level, wanted or (), names)
    return found


def _modules_of(name: str, level: int, wanted: Iterable[str], names: Mapping[str, Any]) -> set[str]:
    if level:
        name = importlib.util.resolve_name("." * level + name, names.get("__package__") or "")
    parts = name.split(".")
    packages = {".".join(parts[: n + 1]) for n in range(len(parts))}
    if _is_library(name):
        return {name}
    module = _imported(name)
    return packages | {f"{name}.{each}" for each in wanted if each != "*" and not hasattr(module, each)}


def _imported(name: str) -> types.ModuleType | None:
    """A module of the user's, imported as the function would do it; None for one that cannot be, and for a library."""
    if name in sys.modules or _is_library(name):
        return sys.modules.get(name)
    try:
        return importlib.import_module(name)
    except Exception:  # the function reports it when it runs
        return None


# Libraries -----------------------------------------------------------------------------------------------------------


def _library_name(value: Any) -> str | None:
    """The name and version of something that a library has under that name; None for everything else."""
    if isinstance(value, types.ModuleType):
        return _versioned(value.__name__) if _is_library(value.__name__) else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if isinstance(value, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        module = value.__objclass__.__module__
    if not isinstance(module, str) or not isinstance(name, str) or not _is_library(module):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # By name only if the name leads to it: a library may have made it around a function of the user's.
    return f"{_versioned(module)} {name}" if found is value else None


def _versioned(module: str) -> str:
    return f"{module} {_version_of(module.partition('.')[0])}"


def _version_of(top: str) -> str:
    own = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(own, str):
        return own
    return platform.python_version() if top in sys.stdlib_module_names else _installed_version(top)


@functools.cache
def _installed_version(top: str) -> str:
    """The version of the distribution that installed a package."""
    try:
        return importlib.metadata.version(top)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(top, ())
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(names)))


def _is_library(module: str) -> bool:
    """Whether a module comes with Python, with poolish or from where packages are installed."""
    if module in ("__main__", "__mp_main__"):
        return False
    if module.partition(".")[0] == "poolish":
        return True
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if loaded is None:
        spec = _spec_of(module)
    elif spec is None:
        return _is_installed(getattr(loaded, "__file__", None) or "")
    if spec is None:
        return False
    if spec.origin in ("built-in", "frozen") or spec.loader is importlib.machinery.FrozenImporter:
        return True
    places = [spec.origin] if spec.has_location and spec.origin else [*(spec.submodule_search_locations or ())]
    return bool(places) and all(map(_is_installed, places))


def _spec_of(module: str) -> Any:
    """Where a module that is not loaded would come from; its packages are imported, as they would be with it."""
    try:
        return importlib.util.find_spec(module)
    except Exception:  # a package that cannot be imported, or that is a module
        return None


@functools.cache
def _is_installed(place: str) -> bool:
    """Whether a file lies in Python's own library or where packages are installed."""
    parts = pathlib.PurePath(place).parts
    if "site-packages" in parts or "dist-packages" in parts:
        return True
    stdlib = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return any(os.path.realpath(place).startswith(os.path.realpath(each) + os.sep) for each in stdlib)
