"""Programs that random search found to log something wrong, made small.

Each has the check that failed, its seed and the program, as `python -m tests.fuzz`
prints them.
"""

from tests.oracle import Program

FOUND: list[tuple[str, int, Program]] = []
