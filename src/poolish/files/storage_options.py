"""Options of file systems behind URLs, which may hold secrets: given to fsspec, and shown to no one.

fsspec         gets them as they are
cache, report  get ``identity``, a digest of all that is no credential: which store, not who asks
a person       sees their names
an error       has their values replaced by ``***``, but for those that hold no secret, such as an endpoint
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import blake2b
from typing import Any, Self

from poolish.errors import ConfigError
from poolish.files.documents import leaves

#: Names of options, in lower case and without "_" and "-", that say who asks and not which store is asked.
_CREDENTIALS = frozenset({
    *("key", "secret", "token", "password", "passwd", "credential", "credentials", "authorization", "apikey"),
    *("accesskey", "secretkey", "sessiontoken", "accountkey", "sastoken", "clientsecret", "clientid", "tenantid"),
    *("awsaccesskeyid", "awssecretaccesskey", "awssessiontoken", "accesskeyid", "secretaccesskey"),
})  # fmt: skip
#: Names of options whose values may be written and shown.
_HARMLESS = frozenset({
    *("anon", "endpoint", "endpointurl", "region", "regionname", "project", "accountname", "usessl", "verify"),
    *("signatureversion", "addressingstyle", "requesterpays", "versionaware", "defaultblocksize", "revision"),
})  # fmt: skip
#: A shorter value would be found everywhere in a message.
_MIN_SECRET = 4


class StorageOptions(Mapping[str, Any]):
    """Options of a file system, whose ``repr`` has names and no values.

    >>> options = StorageOptions({"key": "AKIA", "secret": "hush", "endpoint_url": "http://localhost:9000"})
    >>> options, options["key"]
    (StorageOptions(key, secret, endpoint_url), 'AKIA')
    >>> options.identity == StorageOptions({"endpoint_url": "http://localhost:9000"}).identity
    True
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    @classmethod
    def of(cls, options: Any, what: str) -> Self | None:
        """The options as they were given, or None for none; an error says what they are and no value."""
        if options is None or isinstance(options, cls):
            return options or None
        if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
            raise ConfigError(
                f"{what}: storage_options is a dict of options of the file system, as {{'endpoint_url': ...}}, got "
                f"{type(options).__name__}"
            )
        return cls(options) if options else None

    def __getitem__(self, name: str) -> Any:
        return self._options[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(self)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageOptions) and self._options == other._options

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def identity(self) -> str:
        """A digest of the options that say which store is asked; the same for all credentials."""
        text = json.dumps(_without_credentials(self._options), sort_keys=True, default=_class_of)
        return blake2b(text.encode(), digest_size=16, person=b"poolish storage").hexdigest()

    @property
    def unwritable(self) -> list[str]:
        """The names of options that may hold secrets."""
        return sorted({name for name, value in leaves(self._options) if not _is_harmless(name, value)})

    @contextmanager
    def concealed(self) -> Iterator[None]:
        """Keep values that may be secret out of errors that are raised here."""
        try:
            yield
        except Exception as error:
            found = [str(value) for name, value in leaves(self._options) if not _is_harmless(name, value)]
            _conceal(error, sorted({each for each in found if len(each) >= _MIN_SECRET}, key=len, reverse=True))
            raise


def concealing(options: StorageOptions | None) -> AbstractContextManager[None]:
    """``options.concealed()``, where there are options."""
    return nullcontext() if options is None else options.concealed()


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def _without_credentials(value: Any) -> Any:
    if isinstance(value, Mapping):
        kept = {str(name): each for name, each in value.items() if _plain(str(name)) not in _CREDENTIALS}
        return {name: _without_credentials(each) for name, each in kept.items()}
    return [_without_credentials(each) for each in value] if isinstance(value, (list, tuple)) else value


def _class_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_harmless(name: str, value: Any) -> bool:
    """Whether a value may be shown; a URL with a user in it may not."""
    return value is None or isinstance(value, bool) or (_plain(name) in _HARMLESS and "@" not in str(value))


def _conceal(error: BaseException, secrets: list[str]) -> None:
    """Replace secrets in an error and in those that led to it."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += [each.__cause__, each.__context__]
        each.args = tuple(_replaced(argument, secrets) for argument in each.args)
        if hasattr(each, "__notes__"):
            each.__notes__ = [_replaced(note, secrets) for note in each.__notes__]
        for name, value in _texts(each):
            setattr(each, name, _replaced(value, secrets))


def _texts(error: BaseException) -> list[tuple[str, str]]:
    """The texts in an error besides its arguments."""
    own = [(name, getattr(error, name)) for name in ("strerror", "filename") if isinstance(error, OSError)]
    return [(name, value) for name, value in [*vars(error).items(), *own] if isinstance(value, str)]


def _replaced(value: Any, secrets: Iterable[str]) -> Any:
    if not isinstance(value, str):
        text = str(value)
        return value if _replaced(text, secrets) == text else _replaced(repr(value), secrets)
    for secret in secrets:
        for form in (secret, urllib.parse.quote(secret, safe=""), urllib.parse.quote_plus(secret)):
            value = value.replace(form, "***")
    return value
