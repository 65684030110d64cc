"""The application with all verbs."""

from __future__ import annotations

from sparsenn.cli.benchmark import benchmark
from sparsenn.cli.convert import convert
from sparsenn.cli.download import download
from sparsenn.cli.generate import generate
from sparsenn.cli.infer import infer
from sparsenn.cli.info import info
from sparsenn.cli.kernels import kernels
from sparsenn.cli.ladder import ladder
from sparsenn.cli.program import program
from sparsenn.cli.roofline import roofline
from sparsenn.cli.train import train
from sparsenn.cli.tune import tune
from sparsenn.cli.verify import verify

__all__ = ["app"]

app = program((infer, benchmark, train, generate, convert, verify, info, kernels, ladder, roofline, tune, download))
