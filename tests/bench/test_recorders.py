"""Every table has a recorder, and `tools/bench` runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import recorders
from recorders import TABLES, command_for
from results_file import read_results


def test_every_table_that_is_recorded_has_a_recorder(repository: Path) -> None:
    recorded = {read_results(path).table for path in (repository / "bench" / "results").glob("*/*.json")}
    assert recorded <= set(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_scripts_and_what_they_measure_are_there(repository: Path, table: str) -> None:
    recorder = TABLES[table]
    assert f'"{table}"' in (repository / recorder.script).read_text() or recorder.always or table.startswith("spmspm-")
    assert recorder.measures
    assert all((repository / path).exists() for path in recorder.measures)


def test_commands() -> None:
    assert command_for("gemm", ["--plot", "a.png"]) == ["bench/record_gemm.py", "--plot", "a.png"]
    assert command_for("spmspm-sweep", ["challenge"]) == ["bench/record_ladder.py", "--sweep", "challenge"]
    assert command_for("readers") == ["-m", "pytest", "bench/bench_readers.py", "--record"]


def run(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "bench" / "recorders.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_without_a_table_all_are_listed(repository: Path) -> None:
    done = run(repository)
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in TABLES)


def test_an_unknown_table_is_refused(repository: Path) -> None:
    done = run(repository, "gem")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bench: unknown table 'gem'; there are choice, ")


def test_a_table_becomes_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: ran.append((program, words)))
    monkeypatch.setattr(os, "chdir", lambda place: ran.append((str(place), [])))
    recorders.main(["mlp", "--seconds", "5"])
    assert ran[0][0] == str(recorders.ROOT)
    assert ran[1] == (sys.executable, [sys.executable, "bench/record_mlp.py", "--seconds", "5"])
