"""Child processes for the tests of the store."""

import os
import struct

from tests import programs


def in_a_process(function, *arguments):
    """Calls a function of a test file in another process; returns what it printed."""
    done = programs.run(programs.calling(function), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_fsync():
    """Skips `fsync`, which is not needed to survive a killed process."""
    os.fsync = lambda descriptor: None


def fork(work):
    """Starts a child that calls `work`, which reports each completed call to a pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    code = 1
    try:
        os.close(read)
        work(lambda count: os.write(write, struct.pack("<I", count)))
        code = 0
    finally:
        os._exit(code)


def last_reported(pipe):
    reported = b""
    while more := os.read(pipe, 1 << 16):
        reported += more
    os.close(pipe)
    return len(reported) // 4
