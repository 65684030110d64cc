"""`python -m sparsenn`: the same program as the command `sparsenn`."""

import sys

from sparsenn.cli import main

if __name__ == "__main__":
    sys.exit(main())
