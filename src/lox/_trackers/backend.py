"""The base class of backends of experiment trackers."""

import dataclasses
import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from lox._errors import LoxTypeError
from lox._logs.logdict import logdict

from .runs import Ending, Resumed, RunInfo
from .tables import TrackerTables


@dataclasses.dataclass(frozen=True)
class CommandOptions:
    """Options of `lox sync`.

    Attributes:
        label: a name for the store, as the default of `group` and `project`.
        project: the project of the runs.
        group: the group of the runs.
        tags: the tags of the runs.
        step: the step to use as the x-axis.
        histograms: the keys whose arrays to show as histograms.
        images: the keys whose arrays to show as images.
    """

    label: str
    project: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()
    step: str | None = None
    histograms: Sequence[str] = ()
    images: Sequence[str] = ()

    def shown(self) -> dict[str, Any]:
        """The arguments of `TrackerTables`."""
        return {
            "step": self.step,
            "histograms": self.histograms,
            "images": self.images,
            "in_command": True,
        }


class TrackerBackend(TrackerTables):
    """Sends the logs of runs to a tracker, with the tracker's own client.

    Attributes:
        command_name: the name of the tracker for `lox sync`.
        project: the project of the runs, if it was given.
        unused_options: the attributes of `CommandOptions` that it does not support.
    """

    command_name: str
    project: str | None = None
    unused_options: tuple[str, ...] = ()

    @classmethod
    def for_command(cls, options: CommandOptions) -> "TrackerBackend":
        """Creates it for `lox sync`."""
        raise NotImplementedError

    def open(self, run: RunInfo, resumed: Resumed | None = None) -> Any:
        """Opens a run, and returns the `run` that is passed to the other methods.

        Args:
            run: the run.
            resumed: how to continue it; None for a new run.
        """
        raise NotImplementedError

    def write(self, run: Any, logs: logdict) -> None:
        """Sends logs of NumPy values, or buffers them."""
        raise NotImplementedError

    def flush(self, run: Any) -> None:
        """Sends what `write` has buffered, if anything."""

    def end(self, run: Any, ending: Ending, at: float | None = None) -> None:
        """Closes a run, when the tracker has received everything.

        Args:
            run: the run.
            ending: how it has ended.
            at: when it has ended, in seconds since 1970; now by default.
        """

    def destination(self) -> str:
        """The destination; runs that were sent to another one are sent again."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The options that open the same runs in another process, without secrets."""
        return {
            "step": self._step,
            "histograms": self._histograms,
            "images": self._images,
        }


def check_options(
    options: Mapping[str, Any], function: Any, logger: str, name: str
) -> None:
    """Raises if the tracker's own `function` does not accept one of the options.

    Args:
        options: the options that the logger passes on.
        function: the function of the tracker's client.
        logger: the name of the logger.
        name: the name of the function.
    """
    known = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise LoxTypeError(
                f"neither `{logger}` nor `{name}` has an option {option!r}.{hint}"
            )
