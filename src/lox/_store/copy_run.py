"""Copies a run, so that the copy can be read at any moment, and continued later.

All files of a writer but the list of what has been copied may be ahead of that list,
which is written last. A copy that is interrupted between any two operations is that of
an earlier moment.
"""

import re
from typing import Any

from lox._errors import StoreError

from .copied import Copied, CopiedSegment
from .copy_segment import (
    DifferentRowsError,
    Sent,
    copied_by_other_means,
    copy_segment,
    is_complete,
)
from .format import (
    COPIED,
    FINISHED,
    PLACE,
    RUN_FILE,
    SEGMENT_FILE,
    WRITER,
    parse_json,
    read_json_bytes,
)
from .locations import Entry, Location
from .losses import Finished
from .owners import OPEN
from .processes import PART, parts_of
from .reader import describes_run
from .segments import Segment, WrittenSegments, names_in, numbered

# how many times a part may be replaced while it is copied
_MAX_ATTEMPTS = 10
# Where files cannot be appended to, they are sent again as a whole, while their run is
# followed only if they have grown by this factor. So what is sent in all is at most
# five times their final size.
_MIN_GROWTH = 1.25
# the names that a copy consists of
_OURS = re.compile(re.escape(RUN_FILE)), WRITER, FINISHED, OPEN, PART, SEGMENT_FILE


class RunCopy:
    """A copy of a run, which can be updated.

    Args:
        source: the directory of the run.
        target: the directory of the copy.
        overwrite: whether to replace another run that is there.
        follows: whether it is updated again and again.
    """

    def __init__(
        self, source: Location, target: Location, overwrite: bool, follows: bool
    ) -> None:
        self._source = source
        self._target = target
        self._overwrite = overwrite
        self._follows = follows
        # what a complete copy was made of
        self._complete: Any = None
        # the sizes of writers when they were last looked at
        self._sizes: dict[str, int] = {}

    def update(self, exists: bool) -> tuple[Sent, bool]:
        """Sends what is new.

        Args:
            exists: whether the directory of the copy exists.

        Returns:
            What was sent, and whether the run is finished.
        """
        self._sent = Sent()
        parts = [self._source, *parts_of(self._source).values()]
        state = [(path.name, _content(path / RUN_FILE), _names(path)) for path in parts]
        if self._complete is not None and state == self._complete:
            return self._sent, True
        finished = True
        names = _names(self._target) if exists else []
        for part in parts:
            is_first = part is self._source
            target = self._target if is_first else self._target / part.name
            there = exists if is_first else part.name in names
            finished &= self._update_part(part, target, there, is_first)
        self._complete = state if finished else None
        return self._sent, finished

    def _update_part(
        self, source: Location, target: Location, exists: bool, is_first: bool
    ) -> bool:
        for _ in range(_MAX_ATTEMPTS):
            content = _content(source / RUN_FILE)
            try:
                finished = self._copy_part(source, target, exists, is_first, content)
                if _content(source / RUN_FILE) == content:
                    return finished
            except (OSError, StoreError):
                if _content(source / RUN_FILE) == content:
                    raise
            exists = True  # and again, as the run was replaced meanwhile
        raise StoreError(f"{source} was replaced again and again while it was copied.")

    def _copy_part(
        self,
        source: Location,
        target: Location,
        exists: bool,
        is_first: bool,
        content: bytes | None,
    ) -> bool:
        """Copies the files of one process; returns whether it has finished them."""
        entries = _entries(target) if exists else {}
        description = _description(content, source)
        if content is not None:
            self._send_description(target, entries, content, description, is_first)
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
                process = None if listed else _content(source / owner)
                if process is not None:
                    self._send_owner(target, owner, process, entries)
                written = WrittenSegments(number, source / name, done)
                self._copy_writer(written, done, target, name, entries)
                if process is None and owner in entries:
                    (target / owner).remove()
                finished &= listed
        for number, name in numbered(entries, WRITER):
            if number < first:  # of a run that was replaced
                self._remove_writer(target, name, entries)
            elif number not in writers and content is not None:
                self._remove_without_rows(target, name, entries)
        return finished

    def _remove_without_rows(
        self, part: Location, name: str, entries: dict[str, Entry]
    ) -> None:
        """Removes a writer that was closed without rows, and is gone from the source.

        Otherwise the copy would seem to be running. Rows that are gone stay. So do the
        writers of a machine that copies its own part of the run to the same place.
        """
        files = [x for x in _entries(part / name) if SEGMENT_FILE.fullmatch(x)]
        if files in ([], [COPIED]):
            self._remove_writer(part, name, entries)

    def _send_owner(
        self, target: Location, name: str, content: bytes, entries: dict[str, Entry]
    ) -> None:
        """Copies the file that names the process of an open writer."""
        if name not in entries or _content(target / name) != content:
            target.make_directory()
            self._sent.replace(target / name, content)

    # --- descriptions and replaced runs

    def _send_description(
        self,
        target: Location,
        entries: dict[str, Entry],
        content: bytes,
        description: dict[str, Any],
        is_first: bool,
    ) -> None:
        before = _content(target / RUN_FILE) if RUN_FILE in entries else None
        if before == content:
            return
        try:
            old = _description(before or None, target)
        except StoreError:  # damaged
            old = {}
        if old and old["started"] != description["started"]:
            self._replace(target, entries, old, description, is_first)
        target.make_directory()
        self._sent.replace(target / RUN_FILE, content)

    def _replace(
        self,
        target: Location,
        entries: dict[str, Entry],
        old: dict[str, Any],
        new: dict[str, Any],
        is_first: bool,
    ) -> None:
        """Removes what would otherwise become part of the new run."""
        first = new.get("first_writer", 0)
        writers = numbered(entries, WRITER)
        # a run that replaces another one has a new number for its first writer
        if any(number >= first for number, _ in writers) and not self._overwrite:
            raise self._has_other_rows(target)
        for name in entries if is_first else ():
            if PART.fullmatch(name):
                part = target / name
                started = _description(_content(part / RUN_FILE), part).get("started")
                # each process has its own clock
                if started is not None and abs(started - old["started"]) < abs(
                    started - new["started"]
                ):
                    self._remove_part(part)
        for number, name in writers:
            if number >= first:
                self._remove_writer(target, name, entries)
                del entries[name]

    def _has_other_rows(self, path: Location) -> StoreError:
        return StoreError(
            f"{path} has rows that {self._source} does not have: it is a copy of "
            "another run, or was written to. Copy to another place, or replace it with "
            "`--overwrite`."
        )

    def _remove_part(self, part: Location) -> None:
        entries = _entries(part)
        for _, name in numbered(entries, WRITER):
            self._remove_writer(part, name, entries)
        (part / RUN_FILE).remove()
        part.remove_directory()

    def _remove_writer(
        self, part: Location, name: str, entries: dict[str, Entry]
    ) -> None:
        """Removes the files of a writer, and nothing else."""
        directory = part / name
        for file in (f"{name}.json", f"{name}.open.json"):
            (part / file).remove()
            entries.pop(file, None)
        files = _entries(directory)
        if any(SEGMENT_FILE.fullmatch(file) for file in files):
            Copied({}).write(directory)  # from now on, no reader sees the files
        for file in files:
            if SEGMENT_FILE.fullmatch(file) and file != COPIED:
                (directory / file).remove()
        (directory / COPIED).remove()
        directory.remove_directory()

    # --- writers

    def _copy_writer(
        self,
        source: WrittenSegments,
        done: Finished,
        part: Location,
        name: str,
        part_entries: dict[str, Entry],
    ) -> None:
        directory = part / name
        entries = _entries(directory) if name in part_entries else {}
        is_done = done.content is not None and not source.is_partial
        copied = _copied(directory) if COPIED in entries else None
        list_path = part / f"{name}.json"
        old_list = _content(list_path) if list_path.name in part_entries else None
        if copied is None and is_done and old_list == done.content:
            segments = source.segments
            if all(is_complete(segment, directory, entries) for segment in segments):
                return
        if copied is None:
            copied = self._begin(source, directory, entries)
        elif not is_done and self._waits(source, directory, copied):
            return
        found = self._copy_segments(source, directory, entries, copied)
        if found != copied:
            self._sent.add(found.write(directory))
        if is_done and done.content is not None:
            for segment in source.segments:
                _cut(segment, directory, entries, found.segments[segment.number])
            if old_list != done.content:
                self._sent.replace(list_path, done.content)
            (directory / COPIED).remove()

    def _begin(
        self, source: WrittenSegments, directory: Location, entries: dict[str, Entry]
    ) -> Copied:
        """Begins a copy, or continues one that was made by other means."""
        found: dict[int, CopiedSegment] = {}
        others = {file for file in entries if SEGMENT_FILE.fullmatch(file)}
        try:
            for segment in source.segments:
                before = copied_by_other_means(segment, directory, entries)
                if before is not None:
                    found[segment.number] = before
                paths = segment.path, segment.records_path, segment.places_path
                others -= {path.name for path in paths}
            if any(entries[file].size for file in others):
                raise DifferentRowsError
        except DifferentRowsError:
            if not self._overwrite:
                raise self._has_other_rows(directory) from None
            found = {}
        directory.make_directory()
        copied = Copied(found)
        self._sent.add(copied.write(directory))
        return copied

    def _copy_segments(
        self,
        source: WrittenSegments,
        directory: Location,
        entries: dict[str, Entry],
        copied: Copied,
    ) -> Copied:
        try:
            return Copied(
                {
                    segment.number: copy_segment(
                        segment,
                        directory,
                        entries,
                        copied.segments.get(segment.number),
                        self._sent,
                    )
                    for segment in source.segments
                }
            )
        except DifferentRowsError:  # copy everything again
            copied = Copied({})
            self._sent.add(copied.write(directory))
            return self._copy_segments(source, directory, {}, copied)

    def _waits(
        self, source: WrittenSegments, directory: Location, copied: Copied
    ) -> bool:
        """Whether files that must be sent as a whole have grown too little yet."""
        if not self._follows or directory.can_patch:
            return False
        total = sent = 0
        for segment in source.segments:
            counts = copied.segments.get(segment.number)
            total += segment.count * segment.record_size
            sent += counts.records * segment.record_size if counts else 0
        # what does not grow any more is sent
        last = self._sizes.get(str(directory))
        self._sizes[str(directory)] = total
        return total < _MIN_GROWTH * sent and last != total


def _content(path: Location) -> bytes | None:
    """The content of a JSON file; None if it does not exist."""
    try:
        return read_json_bytes(path)
    except FileNotFoundError:
        return None


def _copied(directory: Location) -> Copied | None:
    try:
        return Copied.read(directory)
    except StoreError:  # damaged, as by a crash of the machine: copy everything again
        return Copied({})


def _description(content: bytes | None, directory: Location) -> dict[str, Any]:
    """The description of a run; empty if it has none."""
    if content is None:
        return {}
    description = parse_json(content, directory / RUN_FILE)
    if not describes_run(description):
        raise StoreError(f"{directory / RUN_FILE} does not describe a run.")
    return description


def _names(directory: Location) -> list[str]:
    try:
        return sorted(directory.names())
    except FileNotFoundError:
        return []


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
                f"{directory / name} is not a regular file or directory, and is not "
                "written."
            )
    return entries


def _cut(
    source: Segment,
    directory: Location,
    entries: dict[str, Entry],
    counts: CopiedSegment,
) -> None:
    """Removes what follows the copied records, from a copy that was interrupted."""
    sizes = {
        source.records_path.name: len(source.header)
        + counts.records * source.record_size,
        source.places_path.name: counts.places * PLACE.itemsize,
    }
    for name, size in sizes.items():
        file = directory / name
        if name in entries and entries[name].size > size and file.can_patch:
            file.truncate(size)
