"""Child processes of the tests of the store, called, forked, or killed."""

import os
import struct

from tests import programs


def in_a_process(function, *arguments, before=()):
    """Calls a function of this file in another process; returns what it printed."""
    done = programs.run(programs.calling(function), *arguments, before=before)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_fsync():
    """Killing a process loses nothing that the system has; and waiting takes long."""
    os.fsync = lambda descriptor: None


def fork(work):
    """A child that does the work and tells of each call that has returned."""
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


def last_told(pipe):
    told = b""
    while more := os.read(pipe, 1 << 16):
        told += more
    os.close(pipe)
    return len(told) // 4
