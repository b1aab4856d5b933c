"""Stand-ins for modules that pickled logdicts of lox 0.1.0 refer to."""

import sys
from types import ModuleType
from typing import Any


class _OldModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        from ._logs import key, logdict

        names = {"KeyInfo": key.KeyInfo, "_rebuild": logdict.logdict._from_pickle}
        if name not in names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return names[name]


for _name in ("lox._key", "lox._logdict"):
    sys.modules[_name] = _OldModule(_name)
