"""Copies what one process has written of a run.

The list of what has been copied is written last, so the other files of a writer may be
ahead of it. A copy that is interrupted between any two operations shows an earlier
state of the run.
"""

import re
from typing import Any

from lox._errors import StoreError

from .copied import Copied
from .copy_segment import DifferentRowsError, SegmentCopy, Sent
from .copy_times import TimesCopy
from .format import (
    COPIED,
    FINISHED,
    RUN_FILE,
    SEGMENT_FILE,
    WRITER,
    WRITER_FILE,
    numbered,
    parse_json,
    read_json_bytes,
)
from .locations import Entry, Location
from .losses import Finished
from .processes import PART
from .reader import checked_description
from .segments import WrittenSegments, names_in
from .times import TIMES

# how many times a part may be replaced while it is copied
_MAX_ATTEMPTS = 10
# Where files cannot be appended to, they are sent again as a whole; while a run is
# followed, only if they have grown by this factor. So at most five times their final
# size is sent in total.
_MIN_GROWTH = 1.25
# the names that a copy consists of
_OURS = re.compile(re.escape(RUN_FILE)), WRITER_FILE, PART, SEGMENT_FILE


class PartCopy:
    """A copy of the part of a process, which can be updated.

    Args:
        source: the directory of the part.
        target: the directory of the copy.
        is_first: whether it is the part of the first process: the run itself.
        overwrite: whether to replace another run that is there.
        follows: whether it is updated again and again.
    """

    def __init__(
        self,
        source: Location,
        target: Location,
        is_first: bool,
        overwrite: bool,
        follows: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._is_first = is_first
        self._overwrite = overwrite
        self._follows = follows
        # the sizes of writers at the last update
        self._sizes: dict[str, int] = {}

    def update(self, exists: bool, sent: Sent) -> bool:
        """Sends what is new; returns whether the process has finished the run.

        Args:
            exists: whether the directory of the copy exists.
            sent: counts what is sent.
        """
        self._sent = sent
        description = self._source / RUN_FILE
        for _ in range(_MAX_ATTEMPTS):
            content = content_of(description)
            try:
                self._entries = _entries(self._target) if exists else {}
                finished = self._copy(content)
                if content_of(description) == content:
                    return finished
            except (OSError, StoreError):
                if content_of(description) == content:
                    raise
            exists = True  # try again: the run was replaced
        raise StoreError(
            f"{self._source} was replaced again and again while it was copied."
        )

    def _copy(self, content: bytes | None) -> bool:
        source, target = self._source, self._target
        description = _description(content, source)
        if content is not None:
            self._send_description(content, description)
        first = description.get("first_writer", 0)
        # the lists before the writers: what a listed writer has written is complete
        lists = dict(numbered(names_in(source), FINISHED))
        finished = True
        writers = dict(numbered(names_in(source), WRITER))
        for number, name in writers.items():
            if number >= first:
                listed = number in lists
                done = Finished.read(source / lists[number]) if listed else Finished({})
                owner = f"{name}.open.json"
                process = None if listed else content_of(source / owner)
                if process is not None:
                    self._send_owner(owner, process)
                written = WrittenSegments(number, source / name, done)
                self._copy_writer(written, done, name)
                if process is None and owner in self._entries:
                    (target / owner).remove()
                finished &= listed
        for number, name in numbered(self._entries, WRITER):
            if number < first:  # it belongs to a run that was replaced
                _remove_writer(target, name, self._entries)
            elif number not in writers and content is not None:
                self._remove_without_rows(name)
        return finished

    def _remove_without_rows(self, name: str) -> None:
        """Removes a writer that was closed without rows, and removed from the source.

        Otherwise the copy would seem to be running. Rows that were removed from the
        source stay in the copy. So do the writers of other machines, which copy their
        own part of the run to the same place.
        """
        found = _entries(self._target / name)
        files = [file for file in found if SEGMENT_FILE.fullmatch(file)]
        if files in ([], [COPIED]):
            _remove_writer(self._target, name, self._entries)

    def _send_owner(self, name: str, content: bytes) -> None:
        """Copies the file that names the process of an open writer."""
        path = self._target / name
        if name not in self._entries or content_of(path) != content:
            self._target.make_directory()
            self._sent.replace(path, content)

    # --- descriptions and replaced runs

    def _send_description(self, content: bytes, description: dict[str, Any]) -> None:
        path = self._target / RUN_FILE
        before = content_of(path) if RUN_FILE in self._entries else None
        if before == content:
            return
        try:
            old = _description(before or None, self._target)
        except StoreError:  # damaged
            old = {}
        if old and old["started"] != description["started"]:
            self._replace(old, description)
        self._target.make_directory()
        self._sent.replace(path, content)

    def _replace(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Removes what would otherwise become part of the new run."""
        target = self._target
        first = new.get("first_writer", 0)
        writers = numbered(self._entries, WRITER)
        # a run that replaces another one has a new number for its first writer
        if any(number >= first for number, _ in writers) and not self._overwrite:
            raise self._has_other_rows(target)
        for name in self._entries if self._is_first else ():
            if PART.fullmatch(name):
                part = target / name
                of_part = _description(content_of(part / RUN_FILE), part)
                started = of_part.get("started")
                # each process has its own clock
                if started is not None and abs(started - old["started"]) < abs(
                    started - new["started"]
                ):
                    _remove_part(part)
        for number, name in writers:
            if number >= first:
                _remove_writer(target, name, self._entries)
                del self._entries[name]

    def _has_other_rows(self, path: Location) -> StoreError:
        return StoreError(
            f"{path} has rows that {self._source} does not have: it is a copy of "
            "another run, or was written to. Copy to another place, or replace it with "
            "`--overwrite`."
        )

    # --- writers

    def _copy_writer(self, source: WrittenSegments, done: Finished, name: str) -> None:
        directory = self._target / name
        entries = _entries(directory) if name in self._entries else {}
        copies = [SegmentCopy(x, directory, entries) for x in source.segments]
        times = TimesCopy(source, directory, entries)
        is_done = done.content is not None and not source.is_partial
        copied = _copied(directory) if COPIED in entries else None
        list_path = self._target / f"{name}.json"
        old_list = content_of(list_path) if list_path.name in self._entries else None
        if copied is None:
            is_same = is_done and old_list == done.content
            has_rows = is_same and all(copy.is_complete() for copy in copies)
            if has_rows and times.is_complete():
                return
            copied = self._begin(copies, directory, entries)
        elif not is_done and self._waits(source, directory, copied):
            return
        found = self._copy_segments(copies, directory, copied)
        times.update(self._sent)
        if found != copied:
            self._sent.add(found.write(directory))
        if is_done and done.content is not None:
            for copy in copies:
                copy.cut(found[copy.source.number])
            if old_list != done.content:
                self._sent.replace(list_path, done.content)
            (directory / COPIED).remove()

    def _begin(
        self,
        copies: list[SegmentCopy],
        directory: Location,
        entries: dict[str, Entry],
    ) -> Copied:
        """Begins a copy, or continues one that another program has made."""
        copied = Copied()
        others = {x for x in entries if SEGMENT_FILE.fullmatch(x) and x != TIMES}
        try:
            for copy in copies:
                before = copy.find()
                if before is not None:
                    copied[copy.source.number] = before
                others -= {file.target.name for file in copy.files}
            if any(entries[file].size for file in others):
                raise DifferentRowsError
        except DifferentRowsError:
            if not self._overwrite:
                raise self._has_other_rows(directory) from None
            copied = Copied()
        directory.make_directory()
        self._sent.add(copied.write(directory))
        return copied

    def _copy_segments(
        self, copies: list[SegmentCopy], directory: Location, copied: Copied
    ) -> Copied:
        try:
            found = Copied()
            for copy in copies:
                number = copy.source.number
                found[number] = copy.update(copied.get(number), self._sent)
            return found
        except DifferentRowsError:  # copy everything again
            self._sent.add(Copied().write(directory))
            copies = [SegmentCopy(copy.source, directory, {}) for copy in copies]
            return self._copy_segments(copies, directory, Copied())

    def _waits(
        self, source: WrittenSegments, directory: Location, copied: Copied
    ) -> bool:
        """Whether files that must be sent as a whole have not grown enough yet."""
        if not self._follows or directory.can_patch:
            return False
        total = sent = 0
        for segment in source.segments:
            counts = copied.get(segment.number)
            total += segment.count * segment.record_size
            sent += counts.records * segment.record_size if counts else 0
        # files that have stopped growing are sent
        last = self._sizes.get(directory.name)
        self._sizes[directory.name] = total
        return total < _MIN_GROWTH * sent and last != total


def _remove_part(part: Location) -> None:
    entries = _entries(part)
    for _, name in numbered(entries, WRITER):
        _remove_writer(part, name, entries)
    (part / RUN_FILE).remove()
    part.remove_directory()


def _remove_writer(part: Location, name: str, entries: dict[str, Entry]) -> None:
    """Removes the files of a writer, and nothing else."""
    directory = part / name
    for file in (f"{name}.json", f"{name}.open.json"):
        (part / file).remove()
        entries.pop(file, None)
    files = [file for file in _entries(directory) if SEGMENT_FILE.fullmatch(file)]
    if files:
        Copied().write(directory)  # from now on, no reader sees the files
    for file in files:
        if file != COPIED:
            (directory / file).remove()
    (directory / COPIED).remove()
    directory.remove_directory()


def content_of(path: Location) -> bytes | None:
    """The content of a JSON file; None if it does not exist."""
    try:
        return read_json_bytes(path)
    except FileNotFoundError:
        return None


def _copied(directory: Location) -> Copied | None:
    try:
        return Copied.read(directory)
    except StoreError:  # damaged, as by a crash of the machine: copy everything again
        return Copied()


def _description(content: bytes | None, directory: Location) -> dict[str, Any]:
    """The description of a run; empty if it has none."""
    if content is None:
        return {}
    return checked_description(parse_json(content, directory / RUN_FILE), directory)


def _entries(directory: Location) -> dict[str, Entry]:
    """The entries of a directory of a copy, in which nothing may be a link."""
    try:
        entries = directory.entries()
    except FileNotFoundError:
        return {}
    for name, entry in entries.items():
        # a link could lead anywhere
        if entry.kind in ("link", "other") and any(x.fullmatch(name) for x in _OURS):
            raise StoreError(
                f"{directory / name} is not a regular file or directory, so it is "
                "not written."
            )
    return entries
