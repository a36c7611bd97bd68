"""The command line as ``python -m oocpr``."""

import sys

from oocpr.cli import main

if __name__ == "__main__":
    sys.exit(main())
