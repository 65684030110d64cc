"""The application with all verbs."""

from __future__ import annotations

from sparsenn.cli.program import VERBS, program

app = program(VERBS)
