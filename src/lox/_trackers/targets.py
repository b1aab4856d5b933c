"""The trackers that `lox sync` sends runs to, by name."""

import importlib
from collections.abc import Mapping
from typing import Any

from lox._errors import LoxError

from .backend import CommandOptions, TrackerBackend

# the module of each, loaded when it is used, and its class
_TRACKERS = {
    "mlflow": "MLflowBackend",
    "trackio": "TrackioBackend",
    "wandb": "WandbBackend",
}
NAMES = tuple(_TRACKERS)


def tracker_class(name: str) -> type[TrackerBackend]:
    module = importlib.import_module(f"lox._trackers.{name}")
    found: type[TrackerBackend] = getattr(module, _TRACKERS[name])
    return found


def open_tracker(name: str, options: CommandOptions) -> TrackerBackend:
    """The backend of a tracker; raises if its package is not installed."""
    try:
        return tracker_class(name).for_command(options)
    except ImportError as error:
        raise LoxError(str(error)) from error


def reopen_tracker(name: str, settings: Mapping[str, Any]) -> TrackerBackend:
    """The backend of a tracker, with the `settings` of a logger's backend."""
    create: Any = tracker_class(name)
    try:
        backend: TrackerBackend = create(**settings, in_command=True)
    except ImportError as error:
        raise LoxError(str(error)) from error
    return backend
