"""The kinds of hostile input."""

from collections.abc import Callable

from tests.fuzz.hostile import arguments, files, requests

# each is given a seed, and raises if the case fails
KINDS: dict[str, Callable[[int], None]] = {
    "files": files.check,
    "requests": requests.check,
    "arguments": arguments.check,
    "command": arguments.check_command,
}
