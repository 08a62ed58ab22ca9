"""The digest: a walk over a value and everything it reaches, in an order that is the same in every process."""

from __future__ import annotations

import builtins
import copyreg
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import logging
import pathlib
import random
import sys
import threading
import types
import typing
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from poolish import torch_bridge
from poolish.fingerprints.code import (
    all_names,
    globals_of,
    imported_module,
    imports_of,
    is_library,
    library_name,
    qualified_name,
    versioned,
)

#: Types whose repr is exact and the same in every process.
_EXACT_REPR = {
    *(type(None), bool, int, float, complex, str, bytes, range, type(Ellipsis), type(NotImplemented)),
    *(datetime.date, datetime.timedelta, decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
}
#: Class members without influence on what a class does: bookkeeping, and the line that it begins on.
_BOOKKEEPING = {
    *("__dict__", "__weakref__", "__module__", "__qualname__", "_abc_impl"),
    "__slotnames__",  # cached in the class when an object is first pickled or copied
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


class Unknown(Exception):
    """Something that cannot be fingerprinted; the text names it."""


class Digest:
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
            raise Unknown(f"more than {self._max_values:,} values")
        kind = type(value)
        if kind in _EXACT_REPR:
            self._say(kind.__name__, repr(value))
        elif (dynamic := _dynamic_name(value)) is not None:
            raise Unknown(_reaches(dynamic))
        elif kind in _CONTAINERS:
            self._container(kind, value)
        elif (name := library_name(value)) is not None:
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
            raise Unknown(f"more than {self._max_bytes:,} bytes")
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
        digest = Digest(max_values=self._max_values, max_bytes=self._max_bytes)
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
            raise Unknown(_described(value)) from None
        self._say("values", content)
        self._attributes(vars(value))

    # -- objects

    def _object(self, value: Any) -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        self._say("object", kind)
        if isinstance(value, types.ModuleType):
            raise Unknown(f"the module {value.__name__!r} as a value")
        if isinstance(value, _MOVING) or _is_torch_generator(value):
            raise Unknown(f"{_described(value)}, whose state changes with every call")
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
            raise Unknown(_described(value)) from None
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
        except Unknown as unknown:
            raise Unknown(f"{_described(value)}, which holds {unknown}") from None

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
            (place for place in sorted(members) if members[place].get(name) is value and is_library(place)), None
        )
        if library is None:
            raise Unknown(_described(value))
        self._say("library", f"{versioned(library)} {name}")

    # -- what runs

    def _bound(self, value: Any) -> None:
        owner = value.__self__
        if isinstance(owner, types.ModuleType):
            raise Unknown(f"{_described(value)} of the compiled module {owner.__name__!r}")
        self._say("method", value.__name__)
        try:
            self.add(owner)
        except Unknown as unknown:
            raise Unknown(f"{_described(value)}, which belongs to {unknown}") from None
        self.add(getattr(value, "__func__", None))

    def _function(self, function: types.FunctionType) -> None:
        self._say("function", function.__name__)
        if function.__code__ is _SINGLEDISPATCH:
            self._singledispatch(function)
            return
        self._code(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__, _annotations(function)))
        names = all_names(function.__code__)
        for name in sorted(_DYNAMIC_ATTRIBUTES & names):
            raise Unknown(_reaches(f"the attribute {name}"))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._say("closure", name)
            self._cell(name, cell, names)
        self._attributes(vars(function))
        for name in sorted(globals_of(function.__code__)):
            self._say("global", name)
            self._global(name, function, names)
        for module in sorted(imports_of(function.__code__, function.__globals__)):
            self._say("import", module)
            self._module(imported_module(module), names)

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
            raise Unknown(_reaches(f"{name}()"))
        elif hasattr(builtins, name):
            self._reached(name, getattr(builtins, name), names)
        else:
            self._say("undefined", name)

    def _reached(self, name: str, value: Any, names: set[str]) -> None:
        """What a name in the code stands for."""
        try:
            self._module(value, names) if isinstance(value, types.ModuleType) else self.add(value)
        except Unknown as unknown:
            raise Unknown(f"{name!r}: {unknown}" if repr(name) not in str(unknown) else str(unknown)) from None

    def _module(self, module: types.ModuleType | None, names: set[str]) -> None:
        """Of a module of the user's, everything with a name that the code contains."""
        if module is None:
            self._say("module", "")
            return
        if is_library(module.__name__):
            self._say("module", versioned(module.__name__))
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
                raise Unknown(_reaches(f"{module.__name__}.{name}"))
            value = vars(module)[name]
            is_code = isinstance(value, (types.FunctionType, type)) and not is_library(value.__module__)
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
    if reduce is not None and not is_library(reduce.__module__):
        return True
    own = ("__getstate__", "__reduce__", "__reduce_ex__")
    return any(name in vars(each) and not is_library(each.__module__) for each in kind.__mro__ for name in own)


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
