"""`python -m lox` is the `lox` command."""

import sys

from lox.cli import main

if __name__ == "__main__":
    sys.exit(main())
