"""datasets/README.md says of each model what its file says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_readme_of_this_repository_is_up_to_date(repository: Path) -> None:
    command = [sys.executable, str(repository / "tools" / "describe_datasets.py"), "--root", str(repository), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
