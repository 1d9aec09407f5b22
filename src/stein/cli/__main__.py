"""``python -m stein.cli`` is ``stein``."""

import sys

from stein.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
