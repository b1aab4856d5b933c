"""Commands that follow runs, while these are written, damaged and removed."""

import contextlib
import pathlib
import random
import shutil
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import lox
from lox._store.creating import open_run
from lox._store.writer import Writer
from lox.cli import _trackers, sync, tail
from tests.fuzz.hostile.files import RUNS, original_store
from tests.fuzz.hostile.mutations import ODD_TEXTS, damage_files
from tests.fuzz.hostile.sandbox import command
from tests.page.stores import logs

_COMMANDS = (
    "tail store -f",
    "tail store -f --json -n 0",
    "tail store/live -f -k loss",
    "tail store/live store/{run} -f -n 3 --interval 1e9",
    "tail store -f -k missing",
    "sync store --to copy --follow",
    "sync store --to copy --follow --json --overwrite",
    "sync store/live --to copy --follow --interval 0.1",
    "sync store --to trackio --follow --dry-run",
)
_INTERRUPTED = 130


class Clock:
    """Instead of sleeping, changes the store; after a while, Ctrl-C is pressed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = rng.randrange(1, 6)
        self._writers = [_live_run("live")]
        self.done: list[str] = []

    def sleep(self, seconds: float) -> None:
        if self._count == 0:
            raise KeyboardInterrupt
        self._count -= 1
        change = self._rng.choice(_CHANGES)
        self.done.append(change.__name__[1:])
        # as a program would: its run may be gone, or what was a directory is a file
        with contextlib.suppress(lox.LoxError, OSError):
            change(self._rng, self._writers)

    def close(self) -> None:
        for writer in self._writers:
            with contextlib.suppress(lox.LoxError, OSError):
                writer.close()


def _live_run(name: str, mode: str = "w") -> Writer:
    writer = open_run(pathlib.Path("store") / name, mode, tracked=True)
    writer.write(logs([0, 1], loss=[1.0, 2.0]))
    return writer


# --- what happens while a command waits ------------------------------------------


def _write(rng: random.Random, writers: list[Writer]) -> None:
    step = rng.randrange(100)
    kinds = ({"loss": [1.0]}, {"loss": [[1.0, 2.0]]}, {rng.choice(ODD_TEXTS): [3]})
    rng.choice(writers).write(logs([step], **rng.choice(kinds)))


def _damage(rng: random.Random, writers: list[Writer]) -> None:
    damage_files(pathlib.Path("store"), rng)


def _damage_copy(rng: random.Random, writers: list[Writer]) -> None:
    damage_files(pathlib.Path("copy"), rng)


def _finish(rng: random.Random, writers: list[Writer]) -> None:
    writer = rng.choice(writers)
    writer.finish()
    writer.close()


def _add_run(rng: random.Random, writers: list[Writer]) -> None:
    names = ("new", "live", *RUNS)
    writers.append(_live_run(rng.choice(names), rng.choice("awx")))


def _remove_run(rng: random.Random, writers: list[Writer]) -> None:
    found = sorted(pathlib.Path("store").iterdir())
    shutil.rmtree(rng.choice(found), ignore_errors=True)


def _remove_store(rng: random.Random, writers: list[Writer]) -> None:
    shutil.rmtree(rng.choice(("store", "copy")), ignore_errors=True)


def _replace_store(rng: random.Random, writers: list[Writer]) -> None:
    shutil.rmtree("store", ignore_errors=True)
    if rng.random() < 0.5:
        pathlib.Path("store").write_bytes(b"a file")
    else:
        shutil.copytree(original_store(), "store")


_CHANGES: tuple[Callable[[random.Random, list[Writer]], None], ...] = (
    _write,
    _write,
    _damage,
    _damage,
    _damage_copy,
    _finish,
    _add_run,
    _remove_run,
    _remove_store,
    _replace_store,
)


def prepare() -> None:
    original_store()


@contextlib.contextmanager
def _time_is(clock: Clock) -> Iterator[None]:
    modules: tuple[ModuleType, ...] = (tail, sync, _trackers)
    before: list[Any] = [module.time for module in modules]  # type: ignore[attr-defined]
    for module in modules:
        module.time = clock  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, time in zip(modules, before, strict=True):
            module.time = time  # type: ignore[attr-defined]


def check(seed: int) -> None:
    """Follows runs until Ctrl-C, or until there is nothing to follow."""
    rng = random.Random(f"following {seed}")
    shutil.copytree(original_store(), "store")
    if rng.random() < 0.3:
        damage_files(pathlib.Path("store"), rng)
    clock = Clock(rng)
    line = rng.choice(_COMMANDS).format(run=rng.choice(RUNS))
    try:
        with _time_is(clock):
            command(*line.split(), codes=(0, 1, 2, _INTERRUPTED))
    except BaseException as error:
        error.add_note(f"{line}: {clock.done}")
        raise
    finally:
        clock.close()
