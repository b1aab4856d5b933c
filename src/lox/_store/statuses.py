"""The status of a run, and what a finished writer records about its end."""

import time
from typing import Any, Literal, NamedTuple

Status = Literal["running", "finished", "failed", "killed", "stale"]

_MAX_ERROR = 500


class Ending(NamedTuple):
    """How a writer has ended.

    Attributes:
        status: `"failed"` if an exception ended the process, `"killed"` if that was a
            `KeyboardInterrupt`.
        time: when it ended; None if it is not known.
        error: the exception that ended the process, if any.
    """

    status: Literal["finished", "failed", "killed"] = "finished"
    time: float | None = None
    error: str | None = None

    @classmethod
    def now(cls, error: BaseException | None) -> "Ending":
        """The end of a writer, given the exception that ends the process, if any."""
        if error is None:
            return cls("finished", time.time())
        message = f"{type(error).__name__}: {error}".strip().removesuffix(":")
        interrupted = isinstance(error, KeyboardInterrupt)
        status: Literal["killed", "failed"] = "killed" if interrupted else "failed"
        return cls(status, time.time(), message[:_MAX_ERROR])

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status, "ended": self.time, "error": self.error}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Ending":
        """The end that the file of a finished writer describes, if it does."""
        status, ended = content.get("status"), content.get("ended")
        error = content.get("error")
        if not (isinstance(ended, int | float) and 0 <= ended < 2**63):
            ended = None
        return cls(
            status if status in ("failed", "killed") else "finished",
            ended,
            error[:_MAX_ERROR] if isinstance(error, str) else None,
        )


FINISHED_NORMALLY = Ending()
