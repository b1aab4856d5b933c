"""What the JSON file of a segment says about its records.

A store may have thousands of runs, most of them with the same schema, so a schema that
was read before is not parsed again.
"""

from lox._errors import StoreError

from .format import npy_header, parse_json, read_json_bytes
from .locations import Location
from .schema import KeySchema, Schema

_MAX_LAYOUTS = 256


class Layout:
    """The schema of a segment, and where the values of its keys and steps are.

    Attributes:
        schema: the schema.
        names: the keys.
        keys: the schema of each key, and the index of its first column.
        first_step: the index of the column of the first step; the mask is last.
        dtype: the dtype of the records.
        header: the header of the file of the records, with a length of 0.
        scalars: the keys of which each row is a scalar, or a tree of scalars.
    """

    def __init__(self, path: Location, raw: bytes) -> None:
        content = parse_json(raw, path)
        try:
            self.schema = Schema.from_json(content["schema"])
            self.dtype = self.schema.dtype
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = error if isinstance(error, StoreError) else repr(error)
            raise StoreError(f"{path} does not describe records: {reason}.") from None
        self.header = npy_header(self.dtype, 0)
        self.names = [key.name for key in self.schema.keys]
        self.keys: dict[str, tuple[KeySchema, int]] = {}
        self.first_step = 0
        for key in self.schema.keys:
            self.keys[key.name] = key, self.first_step
            self.first_step += len(key.columns)
        self.scalars = [
            (key, first)
            for key, first in self.keys.values()
            if all(x.shape == () and x.impl is None for x in key.columns)
        ]

    def count_records(self, path: Location, header: bytes, size: int) -> int:
        """The number of records in a file; raises if it has another header.

        Args:
            path: the file, for messages.
            header: its first bytes.
            size: its size.
        """
        count = max(size - len(self.header), 0) // self.dtype.itemsize
        if count and _without_length(header) != _without_length(self.header):
            raise StoreError(
                f"{path} is damaged: its header does not match its schema."
            )
        return count


def _without_length(header: bytes) -> tuple[bytes, bytes]:
    """The parts of the header of a `.npy` file before and after its length."""
    before, _, after = header.rpartition(b"(")
    return before, after[after.find(b",") :]


_layouts: dict[bytes, Layout] = {}


def layout_of(path: Location) -> Layout:
    """The layout of a segment, given its JSON file."""
    raw = read_json_bytes(path)
    found = _layouts.get(raw)
    if found is None:
        if len(_layouts) >= _MAX_LAYOUTS:
            _layouts.clear()
        found = _layouts[raw] = Layout(path, raw)
    return found
