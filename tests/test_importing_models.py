"""The examples of docs/importing-models.md run as written, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparsenn.io.importers.rounding import RoundingWarning


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_examples_run_as_written(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("torch", "sklearn"):
        pytest.importorskip(library, reason=f"needs {library}")
    monkeypatch.chdir(tmp_path)
    page = (repository / "docs" / "importing-models.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 7
    names: dict[str, object] = {}
    with pytest.warns(RoundingWarning):  # as the first example says
        exec(examples[0], names)
    for example in examples[1:]:
        exec(example, names)
