"""Loggers: what sends the logs of runs somewhere, one run a vmapped seed."""

from ._base import Logger as Logger, LoggerState as LoggerState, RunInfo as RunInfo
from ._multi import MultiLogger as MultiLogger
from ._save import SaveLogger as SaveLogger
