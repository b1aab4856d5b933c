"""The kinds of hostile input."""

from collections.abc import Callable

from tests.fuzz.hostile import arguments, files, following, requests, trackers, urls

# each is given a seed, and raises if the case fails
KINDS: dict[str, Callable[[int], None]] = {
    "files": files.check,
    "requests": requests.check,
    "arguments": arguments.check,
    "command": arguments.check_command,
    "environment": arguments.check_environment,
    "urls": urls.check,
    "following": following.check,
    "trackers": trackers.check,
    "unsent": trackers.check_unsent,
}
# those that need the clients of trackers
OF_TRACKERS = ("trackers", "unsent")
