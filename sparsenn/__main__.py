"""`python -m sparsenn`: the same program as the command `sparsenn`."""

from sparsenn.cli import run

if __name__ == "__main__":
    run()
