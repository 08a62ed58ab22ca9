"""A small Hugging Face Hub on this machine, for tests that push and load datasets with the real client libraries.

Everything is in memory, and R is a dataset repository, ``user/name``. A push goes through these states:

    POST /api/repos/create                         R exists, with one commit without files
    POST /api/datasets/R/preupload/main            the client knows each file's way: Parquet "lfs", others "regular"
    POST /datasets/R.git/info/lfs/objects/batch    the client knows which objects are missing, and where to put them
    PUT  /objects/SHA256                           the object is here, but no file of R yet
    POST /api/datasets/R/commit/main               R has a new commit: its head's files, with these added and deleted

Loading reads ``/api/datasets/R/tree/COMMIT`` and ``/datasets/R/resolve/COMMIT/PATH``. Commits are never changed or
dropped, so whoever reads at a commit reads one state of R, whatever is pushed meanwhile.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePosixPath
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

SILENCE_S = 30  # a client that is silent for so long is given up
CLIENT_LIMIT_S = 90  # a client that takes longer has failed
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


# What is asked and what is answered ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A request whose body was read to the end. ``path`` is still quoted: %2F does not separate its parts."""

    method: str
    path: str
    query: dict[str, list[str]]
    range: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """What the client gets to see."""

    body: bytes = b""
    status: int = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)


def say(content: object, status: int = HTTPStatus.OK) -> Answer:
    """An answer in JSON."""
    return Answer(json.dumps(content).encode(), status, {"Content-Type": "application/json"})


class Refusal(Exception):
    """Ends a request. ``code`` is the word from which clients make an exception of their own, where they have one."""

    def __init__(self, status: HTTPStatus, message: str, code: str = "", **headers: str) -> None:
        super().__init__(message)
        self.answer = Answer(
            json.dumps({"error": message}).encode(),
            status,
            {"Content-Type": "application/json", "X-Error-Message": message, "X-Error-Code": code, **headers},
        )


# What is kept -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """A file in a commit. A large one is known by its content's SHA-256, another one by git's blob number."""

    content: bytes
    oid: str
    is_large: bool


def regular(content: bytes) -> File:
    return File(content, git_number("blob", content), is_large=False)


def git_number(kind: str, content: bytes) -> str:
    """The 40 digits by which git knows an object."""
    return hashlib.sha1(b"%s %d\0%s" % (kind.encode(), len(content), content)).hexdigest()


@dataclass
class Repo:
    """One dataset repository: its commits from the oldest to the head, each with all files by path."""

    name: str
    commits: dict[str, dict[str, File]] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return next(reversed(self.commits))

    def commit(self, files: dict[str, File]) -> str:
        """Make these files the head; its number."""
        lines = [*self.commits, *(f"{file.oid} {path}" for path, file in sorted(files.items()))]
        number = git_number("commit", "\n".join(lines).encode())
        self.commits[number] = files
        return number

    def find(self, revision: str) -> tuple[str, dict[str, File]]:
        """The commit that a branch or a number means, and its files."""
        number = self.head if revision == "main" else revision
        if number not in self.commits:
            raise Refusal(HTTPStatus.NOT_FOUND, f"{self.name} has no revision {revision}", "RevisionNotFound")
        return number, self.commits[number]


class Hub:
    """The server as a test sees it: where it is, what a client must be told, and what was asked so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        #: Every request as it came in: ``"GET /api/datasets/user/name"``.
        self.requests: list[str] = []
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}
        self._one_at_a_time = threading.Lock()

    def told_by(self, program: str, home: Path, said: object = None) -> dict[str, Any]:
        """The JSON that a client prints, a program in a process of its own that reads ``said``; and what it asked."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(said),
            env=self.environment(home),
            capture_output=True,
            text=True,
            timeout=CLIENT_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr}\nrequests:\n" + "\n".join(self.requests)
        return {**json.loads(done.stdout), "requests": self.requests}

    def environment(self, home: Path) -> dict[str, str]:
        """All variables for a child process whose clients know only this hub, and keep their files in ``home``.

        The libraries read them when they are imported, so they are of no use to the process that runs the tests.
        """
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGING")) and name.lower() not in PROXIES
        }
        return {
            **inherited,
            "HF_HOME": str(home),
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": "hf_local",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
            "HF_UPDATE_DOWNLOAD_COUNTS": "0",
            # datasets also asks "datasets-server." + our host. As everybody's proxy we refuse that at once, where a
            # name server might take long, and nothing leaves this machine.
            **dict.fromkeys(PROXIES, self.url),
            "no_proxy": urlsplit(self.url).hostname or "",
        }

    def answer(self, request: Request) -> Answer:
        """Answer one request. They are answered one after the other, so no handler sees half of another's work."""
        with self._one_at_a_time:
            try:
                return self._handle(request)
            except Refusal as refusal:
                return refusal.answer
            except Exception as error:
                # Clients repeat a request that ended in 500, for long. This is a bug here and should be seen soon.
                return Refusal(HTTPStatus.BAD_REQUEST, f"bug in the local hub: {error!r}").answer

    def _handle(self, request: Request) -> Answer:
        method = "GET" if request.method == "HEAD" else request.method
        for wanted, path, handler in ROUTES:
            if wanted == method and (match := path.fullmatch(request.path)):
                return handler(self, request, **{name: unquote(part or "") for name, part in match.groupdict().items()})
        raise Refusal(HTTPStatus.NOT_IMPLEMENTED, f"the local hub does not know {request.method} {request.path}")

    def repo(self, name: str) -> Repo:
        if name not in self.repos:
            raise Refusal(HTTPStatus.NOT_FOUND, "Repository not found", "RepoNotFound")
        return self.repos[name]


# Pushing ------------------------------------------------------------------------------------------------------


def create(hub: Hub, request: Request) -> Answer:
    wanted = request.json()
    if wanted.get("type") != "dataset":
        raise Refusal(HTTPStatus.NOT_IMPLEMENTED, "the local hub holds datasets only")
    name = f"{wanted['organization'] or 'user'}/{wanted['name']}"
    is_new = name not in hub.repos
    if is_new:
        hub.repos[name] = Repo(name)
        hub.repos[name].commit({})
    # Clients that allow a repository to exist look for its address in the conflict.
    return say({"url": f"{hub.url}/datasets/{name}"}, HTTPStatus.OK if is_new else HTTPStatus.CONFLICT)


def validate_card(hub: Hub, request: Request) -> Answer:
    return say({"errors": [], "warnings": []})


def preupload(hub: Hub, request: Request, repo: str, revision: str) -> Answer:
    """Which way each file goes, and what is there now: clients leave out what has not changed."""
    files = head_files(hub.repo(repo), revision)
    return say({"files": [way_of(wanted["path"], files) for wanted in request.json()["files"]]})


def way_of(path: str, files: dict[str, File]) -> dict[str, object]:
    mode = "lfs" if path.endswith(".parquet") else "regular"
    return {"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": files[path].oid if path in files else None}


def head_files(repo: Repo, revision: str) -> dict[str, File]:
    """The files that a push changes: those of ``main``, the only branch there is."""
    if revision != "main":
        raise Refusal(HTTPStatus.NOT_FOUND, f"{repo.name} has no branch {revision}", "RevisionNotFound")
    return repo.commits[repo.head]


def batch(hub: Hub, request: Request, repo: str) -> Answer:
    """Where to put the objects that are not here yet; objects without actions are here."""
    hub.repo(repo)
    objects = [{"oid": wanted["oid"], "size": wanted["size"]} for wanted in request.json()["objects"]]
    for wanted in objects:
        if wanted["oid"] not in hub.objects:
            wanted["actions"] = {"upload": {"href": f"{hub.url}/objects/{wanted['oid']}"}}
    return say({"transfer": "basic", "objects": objects})


def put_object(hub: Hub, request: Request, oid: str) -> Answer:
    if hashlib.sha256(request.body).hexdigest() != oid:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"the object that came is not {oid}")
    hub.objects[oid] = request.body
    return Answer()


def commit(hub: Hub, request: Request, repo: str, revision: str) -> Answer:
    """Change files all at once, unless somebody else was faster: the client then starts from the new head."""
    target = hub.repo(repo)
    files = dict(head_files(target, revision))
    header, *operations = map(json.loads, request.body.splitlines())
    if header["value"].get("parentCommit", target.head) != target.head:
        raise Refusal(HTTPStatus.PRECONDITION_FAILED, "A commit has happened since. Please refresh and try again.")
    for operation in operations:
        change(hub, files, operation["key"], operation["value"])
    number = target.commit(files)
    return say({"success": True, "commitOid": number, "commitUrl": f"{hub.url}/datasets/{repo}/commit/{number}"})


def change(hub: Hub, files: dict[str, File], key: str, value: dict[str, str]) -> None:
    """Do to the files what one line of a commit says."""
    if key == "file":
        files[value["path"]] = regular(base64.b64decode(value["content"]))
    elif key == "lfsFile":
        files[value["path"]] = large(hub, value["oid"])
    elif key == "deletedFile":
        del files[value["path"]]
    else:
        raise Refusal(HTTPStatus.NOT_IMPLEMENTED, f"the local hub cannot commit {key!r}")


def large(hub: Hub, oid: str) -> File:
    if oid not in hub.objects:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"object {oid} is committed but was never uploaded")
    return File(hub.objects[oid], oid, is_large=True)


# Loading ------------------------------------------------------------------------------------------------------


def info(hub: Hub, request: Request, repo: str, revision: str = "main") -> Answer:
    number, files = hub.repo(repo).find(revision or "main")
    siblings = [{"rfilename": path} for path in files]
    return say({"id": repo, "sha": number, "private": False, "tags": [], "siblings": siblings})


def tree(hub: Hub, request: Request, repo: str, revision: str, path: str = "") -> Answer:
    """What is in a folder, or everything below it."""
    number, files = hub.repo(repo).find(revision)
    entries = all_entries(files)
    folder = PurePosixPath(path)
    if path and entries.get(path, {}).get("type") != "directory":
        raise Refusal(HTTPStatus.NOT_FOUND, f"{path} does not exist", "EntryNotFound", **{"X-Repo-Commit": number})
    if request.query.get("recursive") == ["true"]:
        return say([entry for name, entry in entries.items() if folder in PurePosixPath(name).parents])
    return say([entry for name, entry in entries.items() if folder == PurePosixPath(name).parent])


def paths_info(hub: Hub, request: Request, repo: str, revision: str) -> Answer:
    """About the asked paths that exist."""
    entries = all_entries(hub.repo(repo).find(revision)[1])
    paths = parse_qs(request.body.decode())["paths"]
    return say([entries[path] for path in paths if path in entries])


def all_entries(files: dict[str, File]) -> dict[str, dict[str, object]]:
    """Files and the folders that they are in, by path, as clients read them."""
    return {path: folder_entry(path) for path in folders_of(files)} | {
        path: file_entry(path, file) for path, file in files.items()
    }


def folders_of(paths: Iterable[str]) -> list[str]:
    """
    >>> folders_of(["README.md", "data/en/a.parquet"])
    ['data', 'data/en']
    """
    return sorted({str(parent) for path in paths for parent in PurePosixPath(path).parents} - {"."})


def folder_entry(path: str) -> dict[str, object]:
    return {"type": "directory", "path": path, "size": 0, "oid": git_number("tree", path.encode())}


def file_entry(path: str, file: File) -> dict[str, object]:
    size = len(file.content)
    if not file.is_large:
        return {"type": "file", "path": path, "size": size, "oid": file.oid}
    # In git a large file is a small pointer to its object, with a number and a size of its own.
    pointer = file.oid.encode()
    lfs = {"oid": file.oid, "size": size, "pointerSize": len(pointer)}
    return {"type": "file", "path": path, "size": size, "oid": git_number("blob", pointer), "lfs": lfs}


def resolve(hub: Hub, request: Request, repo: str, revision: str, path: str) -> Answer:
    """A file, or the asked range of it."""
    number, files = hub.repo(repo).find(revision)
    headers = {"X-Repo-Commit": number}
    if path not in files:
        raise Refusal(HTTPStatus.NOT_FOUND, f"{path} does not exist", "EntryNotFound", **headers)
    file = files[path]
    size = len(file.content)
    headers |= {"ETag": f'"{file.oid}"', "X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(size)}
    if not request.range:
        return Answer(file.content, HTTPStatus.OK, headers)
    first, last = bounds(request.range, size)
    headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    return Answer(file.content[first : last + 1], HTTPStatus.PARTIAL_CONTENT, headers)


def bounds(asked: str, size: int) -> tuple[int, int]:
    """The first and the last byte that a range means.

    >>> bounds("bytes=2-5", 10), bounds("bytes=2-", 10), bounds("bytes=2-99", 10), bounds("bytes=-3", 10)
    ((2, 5), (2, 9), (2, 9), (7, 9))
    """
    first, last = asked.removeprefix("bytes=").split("-")
    if not first:
        return max(0, size - int(last)), size - 1
    if int(first) >= size:
        raise Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, f"{asked} of {size} bytes")
    return int(first), min(int(last or size), size - 1)


# Which handler answers what -----------------------------------------------------------------------------------


def route(method: str, path: str, handler: Callable[..., Answer]) -> tuple[str, re.Pattern[str], Callable[..., Answer]]:
    """A row of the table below. What stands in braces is a part of the path that is given to the handler."""
    parts = {
        "{repo}": "(?P<repo>[^/]+(?:/[^/]+?)?)",  # user/name, or a name alone, without the .git that may follow
        "{revision}": "(?P<revision>[^/]+)",
        "{file}": "(?P<path>.+)",
        "{oid}": "(?P<oid>[0-9a-f]{64})",
    }
    return method, re.compile(re.sub(r"{\w+}", lambda match: parts[match[0]], path)), handler


ROUTES = [
    route("POST", "/api/repos/create", create),
    route("POST", "/api/validate-yaml", validate_card),
    route("POST", "/api/datasets/{repo}/preupload/{revision}", preupload),
    route("POST", "/datasets/{repo}[.]git/info/lfs/objects/batch", batch),
    route("PUT", "/objects/{oid}", put_object),
    route("POST", "/api/datasets/{repo}/commit/{revision}", commit),
    route("GET", "/api/datasets/{repo}", info),
    route("GET", "/api/datasets/{repo}/revision/{revision}", info),
    route("GET", "/api/datasets/{repo}/tree/{revision}", tree),
    route("GET", "/api/datasets/{repo}/tree/{revision}/{file}", tree),
    route("POST", "/api/datasets/{repo}/paths-info/{revision}", paths_info),
    route("GET", "/datasets/{repo}/resolve/{revision}/{file}", resolve),
]


# The server ---------------------------------------------------------------------------------------------------


class Server(ThreadingTCPServer):
    """Answers each request in a thread of its own, and ends when all of them have."""

    # Not http.server.HTTPServer, which looks up this machine's name, and a name server may take long.
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub = Hub(f"http://127.0.0.1:{self.server_address[1]}")


class Handler(BaseHTTPRequestHandler):
    """One request and its answer. The connection then ends (HTTP/1.0), so that no thread waits for a next request."""

    server: Server
    timeout = SILENCE_S

    def serve(self) -> None:
        self.server.hub.requests.append(f"{self.command} {self.path}")
        answer = self.server.hub.answer(self.request_to_answer())
        self.send_response(answer.status)
        for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    # CONNECT is how a client asks a proxy for a host that speaks https: refused like all that has no route.
    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_CONNECT = serve

    def request_to_answer(self) -> Request:
        # As a proxy we are asked for whole addresses. They are not ours, so they must not look like our own paths.
        is_ours = self.path.startswith("/")
        path, _, query = self.path.partition("?")
        return Request(
            method=self.command,
            path=path if is_ours else self.path,
            query=parse_qs(query),
            range=self.headers.get("Range", ""),
            body=self.read_body(),
        )

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            return b"".join(self.read_chunks())
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def read_chunks(self) -> Iterator[bytes]:
        """Files are sent in chunks, each after its size in hexadecimal digits; one of size 0 is the end."""
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def log_message(self, *arguments: object) -> None:
        """Say nothing: what was asked is in ``requests``."""


@contextmanager
def local_hub() -> Iterator[Hub]:
    """A hub without any repository, until the end of the block.

    >>> with local_hub() as hub:
    ...     environment = hub.environment(folder)
    >>> environment["HF_ENDPOINT"] == hub.url
    True
    """
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.02], name="local hub")
        thread.start()
        try:
            yield server.hub
        finally:
            server.shutdown()
            thread.join(SILENCE_S)
