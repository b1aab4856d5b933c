"""The attributes of Python objects."""

from typing import Any


def attributes_of(x: Any) -> dict[str, Any]:
    """The attributes of an object, also those in slots."""
    slots = {name: getattr(x, name) for name in slots_of(type(x)) if hasattr(x, name)}
    return slots | getattr(x, "__dict__", {})


def slots_of(kind: type) -> list[str]:
    """The names of the slots of a class and its base classes."""
    found: list[str] = []
    for one in kind.__mro__:
        slots = one.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return [name for name in found if name not in ("__dict__", "__weakref__")]
