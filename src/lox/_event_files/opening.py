"""Opens files that other programs have written."""

import io
import os
import stat

from lox._errors import LoxValueError


def open_regular(path: str) -> io.BufferedReader:
    """Opens a file to read it; raises for pipes and devices, which may have no end."""
    # without the flag, opening a pipe waits for its writer
    how = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, how)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LoxValueError(f"{path} is not a regular file, so it is not read.")
    return os.fdopen(descriptor, "rb")
