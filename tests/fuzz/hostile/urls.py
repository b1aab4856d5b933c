"""Stores at URLs: damaged files, invalid URLs, and misbehaving file systems."""

import contextlib
import functools
import itertools
import os
import pathlib
import random
import shutil
from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

import lox
from tests.fuzz.hostile.files import original_store, read_runs, read_sets, show_page
from tests.fuzz.hostile.mutations import ODD_NUMBERS, ODD_TEXTS, damage_files, damaged
from tests.fuzz.hostile.sandbox import command

_ODD_URLS = (
    "memory://",
    "memory:///",
    "memory://missing",
    "memory://store/scalars/run.json",
    "memory://store::memory://store",
    "file://",
    "file://missing",
    "file://../../store",
    "local://store",
    "://",
    "a://b",
    "hostile",
    "hostile://",
    "hostile::hostile://store",
    "http://127.0.0.1:1/store",
    "ftp://127.0.0.1:1/store",
    "data:text/plain,hello",
    "dir://store",
    "reference://store",
    "simplecache::memory://store",
    "filecache://store",
    "zip://",
    "zip://store",
    "zip://store::memory://store",
    "tar://store::file://missing",
)
_ERRORS: tuple[Callable[[], Exception], ...] = (
    lambda: FileNotFoundError(2, "gone"),
    lambda: NotADirectoryError(20, "a file"),
    lambda: PermissionError(13, "forbidden"),
    lambda: TimeoutError(),
    lambda: ConnectionResetError(104, "reset"),
    lambda: ValueError(""),
    lambda: KeyError("Contents"),
    lambda: RuntimeError("a server that\nsays two lines\x1b[31m"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    lambda: EOFError(),
)
_NAMES = (
    "../../evil",
    "../evil",
    "/evil",
    "..",
    ".",
    "",
    "C:\\evil",
    "a\\..\\evil",
    "writer-0009",
    "0000.npy",
    "run.json",
    "process-1",
    "x" * 300,
    "nul\0",
    "\ud800",
)


class HostileFiles(MemoryFileSystem):
    """Files in memory, some of whose calls fail, or return wrong data.

    What a call does depends on the case, the file and how often it was asked for, but
    not on which thread is faster.

    Attributes:
        case: the number of the case.
        share: the share of calls that misbehave.
        calls: how often each file was asked for.
    """

    protocol = "hostile"
    cachable = False
    store: dict[str, Any] = {}  # noqa: RUF012 (fsspec shares it between instances)
    pseudo_dirs = [""]  # noqa: RUF012
    case, share = 0, 0.0
    calls: dict[tuple[str, str], Any] = {}  # noqa: RUF012

    @classmethod
    def begin(cls, case: int) -> None:
        """Removes all files; no call misbehaves until the share is set."""
        cls.case, cls.share = case, 0.0
        cls.calls.clear()
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        path = path.removeprefix("hostile://").lstrip("/").rstrip("/")
        return f"/{path}" if path else ""

    def _odd(self, what: str, path: str) -> random.Random | None:
        """How a call misbehaves, if it does; it may raise an error."""
        counter = self.calls.setdefault((what, path), itertools.count())
        rng = random.Random(f"{self.case} {what} {path!a} {next(counter)}")
        if rng.random() >= self.share:
            return None
        if rng.random() < 0.3:
            raise rng.choice(_ERRORS)()
        return rng

    def _changed(self, rng: random.Random, info: dict[str, Any]) -> dict[str, Any]:
        field = rng.choice(("size", "size", "type", "name", "islink"))
        odd = {
            "size": (None, -1, 0, 2**62, "12", 1.5, *ODD_NUMBERS),
            "type": ("directory", "file", "link", "other", None, 3),
            "name": (*_NAMES, None),
            "islink": (True,),
        }
        changed = {**info, field: rng.choice(odd[field])}
        if rng.random() < 0.2:
            changed.pop(field)
        return changed

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        found = super().ls(path, detail=True, **options)
        rng = self._odd("ls", path)
        if rng is not None:
            kind = rng.randrange(4)
            if kind == 0:
                where = path if rng.random() < 0.5 else ""
                type_ = rng.choice(("file", "directory"))
                name = f"{where}/{rng.choice(_NAMES)}"
                found = [*found, {"name": name, "size": 3, "type": type_}]
            elif kind == 1 and found:
                at = rng.randrange(len(found))
                found = [*found[:at], self._changed(rng, found[at]), *found[at + 1 :]]
            elif kind == 2:
                found = found * rng.randrange(3)
            else:
                rng.shuffle(found)
        return found if detail else [info["name"] for info in found]

    def info(self, path: str, **options: Any) -> Any:
        rng = self._odd("info", path)
        info = super().info(path, **options)
        return info if rng is None else self._changed(rng, info)

    def find(self, path: str, *args: Any, **options: Any) -> Any:
        rng = self._odd("find", path)
        share, type(self).share = self.share, 0.0  # or nothing would be found
        try:
            found = super().find(path, *args, **options)
        finally:
            type(self).share = share
        if rng is not None and isinstance(found, dict):
            name = f"{path}/{rng.choice(_NAMES)}/run.json"
            found[name] = {"name": name, "size": 3, "type": "file"}
        return found

    def cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> Any:
        rng = self._odd("cat", path)
        data = bytes(self.store[self._strip_protocol(path)].getbuffer())
        part = data[start:end]
        if rng is None:
            return part
        kind = rng.randrange(4)
        if kind == 0:
            return part[: rng.randrange(len(part) + 1)]
        if kind == 1:
            return data
        return damaged(part, rng, [data])

    def modified(self, path: str) -> Any:
        self._odd("modified", path)
        return super().modified(path)

    def pipe_file(self, path: str, value: bytes, *args: Any, **options: Any) -> None:
        self._odd("pipe", path)
        super().pipe_file(path, value, *args, **options)

    def mv(self, path1: str, path2: str, *args: Any, **options: Any) -> None:
        self._odd("mv", path2)
        super().mv(path1, path2, *args, **options)

    def open(self, path: str, mode: str = "rb", *args: Any, **options: Any) -> Any:
        self._odd(f"open {mode}", path)
        return super().open(path, mode, *args, **options)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._odd("makedirs", path)
        super().makedirs(path, exist_ok)

    def rm_file(self, path: str) -> None:
        self._odd("rm", path)
        super().rm_file(path)


@functools.cache
def _archive() -> pathlib.Path:
    made = shutil.make_archive("archive", "zip", original_store().parent, "store")
    return pathlib.Path(made).resolve()


def prepare() -> None:
    original_store()
    _archive()
    fsspec.register_implementation("hostile", HostileFiles, clobber=True)


def _upload(protocol: str, rng: random.Random) -> str:
    """Puts a store, which may be damaged, into a file system."""
    shutil.copytree(original_store(), "store")
    if rng.random() < 0.7:
        damage_files(pathlib.Path("store"), rng)
    if protocol == "file":
        return f"file://{os.path.abspath('store')}"
    files = fsspec.filesystem(protocol)
    for path in pathlib.Path("store").rglob("*"):
        with contextlib.suppress(OSError):  # a pipe, or a link to nothing
            if path.is_file() and path.stat().st_size < 2**24 and not path.is_symlink():
                MemoryFileSystem.pipe_file(files, f"/{path}", path.read_bytes())
    return f"{protocol}://store"


def _url(seed: int, rng: random.Random) -> str:
    kind = rng.randrange(8)
    fsspec.filesystem("memory").store.clear()
    HostileFiles.begin(seed)
    if kind == 0:
        _upload("memory", rng)
        url = rng.choice(_ODD_URLS)
        # without what the arguments of a process cannot contain
        odd = [text for text in ODD_TEXTS if not {*text} & {"\0", "\ud800"}]
        return url + rng.choice(odd) if rng.random() < 0.3 else url
    if kind == 1:
        data = _archive().read_bytes()
        pathlib.Path("a.zip").write_bytes(damaged(data, rng, [data]))
        return f"zip://store::file://{os.path.abspath('a.zip')}"
    if kind < 4:
        return _upload(rng.choice(("memory", "file")), rng)
    url = _upload("hostile", rng)
    HostileFiles.share = rng.choice((0.03, 0.1, 0.5))
    return url


def _commands(*lines: str) -> Callable[[str, random.Random], None]:
    def run(url: str, rng: random.Random) -> None:
        for line in lines:
            command(*(word.replace("URL", url) for word in line.split()))

    return run


def _copy_to(url: str, rng: random.Random) -> None:
    """Copies a store to the URL, twice."""
    for _ in range(2):
        command(
            "sync",
            str(original_store()),
            "--to",
            url,
            *rng.choice(((), ("--overwrite",))),
        )


_WAYS: tuple[Callable[[str, random.Random], None], ...] = (
    read_runs,
    read_sets,
    show_page,
    _copy_to,
    _commands("ls URL", "ls URL --json"),
    _commands("show URL/scalars", "show URL/kinds --json"),
    _commands("plot URL", "plot URL/timed -x time"),
    _commands("tail URL", "tail URL/lanes --json"),
    _commands("export URL --to csv -o out.csv"),
    _commands("report URL -o report.html"),
    _commands("diff URL"),
    _commands("sync URL --to copy", "sync URL --to copy --overwrite"),
    _commands("rm -y URL/scalars", "mv -y URL/scalars other"),
    _commands("sync URL --to trackio --dry-run"),
)


def check(seed: int) -> None:
    """Reads a store at a URL, or copies it from there or to it."""
    rng = random.Random(f"urls {seed}")
    url = _url(seed, rng)
    way = rng.choice(_WAYS)
    before = _outside()
    try:
        way(url, rng)
    except lox.LoxError as error:
        assert str(error), "an error without a message"
    except BaseException as error:
        error.add_note(f"{url}")
        raise
    if way is not _copy_to:  # which writes where it is told to
        assert not (found := _outside() - before), f"wrote {found}"


def _outside() -> set[str]:
    """Files that are not where commands may write them."""
    here = {"copy", "store", "out.csv", "report.html", "other"}
    above = (path for up in ("..", "../..") for path in pathlib.Path(up).iterdir())
    return {str(path) for path in above} | {*os.listdir()} - here
