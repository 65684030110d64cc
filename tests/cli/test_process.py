"""The program as a process: exit codes, pipes, terminals, full disks and interrupts."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from children import interrupts_ignored, terminal
from typer.testing import Result

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]

# Slow on purpose: the naive kernel, with nothing left out.
SLOW = ("--kernel", "sequential", "--no-compaction", "--no-deduplication", "--no-merging", "--batch-size", 1)


def test_failed_verification_is_exit_code_1(spawn: Spawn, problem: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.tsv"
    wrong.write_text("200\n")
    process = spawn("challenge", "verify", wrong, problem)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (1, "")
    assert "FAILED" in out


def test_piped_output_has_no_progress_and_no_escapes(spawn: Spawn, problem: Path) -> None:
    process = spawn("infer", problem, "--stats", env={"TERM": "xterm-256color"})
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert "PASSED" in out
    assert "\x1b" not in out


def test_progress_can_be_asked_for_in_a_pipe(spawn: Spawn, problem: Path) -> None:
    process = spawn("infer", problem, "--progress", "--json", "-")
    out, err = process.communicate(timeout=240)
    assert json.loads(out)["verified"] is True
    assert "layers: 6 of 6\n" in err
    assert "\x1b" not in err


@pytest.mark.parametrize(("option", "shown"), [((), True), (("--no-progress",), False)])
def test_progress_on_a_terminal(spawn: Spawn, problem: Path, option: tuple[str, ...], shown: bool) -> None:
    with terminal() as (stream, written):
        process = spawn("infer", problem, *option, stderr=stream, env={"TERM": "xterm-256color"})
        assert "PASSED" in process.communicate(timeout=240)[0]
        text = written()
    assert (b"layers" in text and b"6 of 6" in text) == shown
    assert bool(text) == shown


@pytest.mark.parametrize("arguments", [("infer", "--output", "found.tsv"), ("infer", "--json", "-")])
@pytest.mark.parametrize(
    ("number", "code", "message"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_leaves_no_file_and_no_traceback(
    spawn: Spawn, problem: Path, tmp_path: Path, arguments: tuple[str, ...], number: int, code: int, message: str
) -> None:
    process = spawn(arguments[0], problem, *arguments[1:], "--progress", *SLOW, cwd=tmp_path)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("layers"):
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (code, "")
    assert err.endswith(f"error: {message}\n")
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_an_interrupt_that_is_ignored_changes_nothing(spawn: Spawn, problem: Path, tmp_path: Path) -> None:
    """As under nohup."""
    arguments = ("infer", problem, "--output", "found.tsv", "--progress", *SLOW)
    process = spawn(*arguments, cwd=tmp_path, interrupts=interrupts_ignored)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("layers"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "PASSED" in out
    assert [path.name for path in tmp_path.iterdir()] == ["found.tsv"]


def test_interrupt_while_generating_leaves_no_file(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(
        "challenge", "generate", "big.h5", "--neurons", 4096, "--inputs", "digits", "--progress", cwd=tmp_path
    )
    assert process.stderr is not None
    assert " of " in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("error: interrupted\n")
    assert not list(tmp_path.iterdir())


def test_reader_that_stops_reading_is_no_error(spawn: Spawn, problem: Path) -> None:
    process = spawn("infer", problem, "--stats")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=240) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_a_log_is_added_to(spawn: Spawn, problem: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "log").write_text("IMPORTANT\n")
    with (tmp_path / "log").open("a") as log:
        process = spawn("infer", problem, "--json", name, stdout=log)
        assert process.communicate(timeout=240)[1] == ""
    text = (tmp_path / "log").read_text()
    assert process.returncode == 0
    assert text.startswith("IMPORTANT\n")
    assert "PASSED" in text
    assert json.loads(text[text.index("{\n") :])["verified"] is True


def test_full_disk_behind_stdout(spawn: Spawn, problem: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = spawn("infer", problem, stdout=full)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 2
    assert err == "error: No space left on device\n"


def test_a_full_disk_is_told_once_whatever_is_printed_after_that() -> None:
    code = """
from sparsenn.cli.exits import finish, prepare_streams, report_error
prepare_streams()
try:
    print("summary", flush=True)
except OSError as error:
    code = report_error(error)
print("more")
raise SystemExit(finish(code))
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, env=buffered, check=False
        )
    assert (ended.returncode, ended.stderr) == (2, "error: No space left on device\n")


def test_full_disk_behind_stderr_changes_no_exit_code(spawn: Spawn, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = spawn("infer", tmp_path / "none.h5", stderr=full)
        process.communicate(timeout=240)
    assert process.returncode == 2


@pytest.mark.parametrize("json", ["-", "found.json"])
def test_progress_that_cannot_be_shown_costs_no_result(spawn: Spawn, problem: Path, tmp_path: Path, json: str) -> None:
    arguments = ("infer", problem, "--progress", "--stats", "--json", json, "--output", "found.tsv")
    with Path("/dev/full").open("w") as full:
        process = spawn(*arguments, cwd=tmp_path, stderr=full)
        out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    assert (tmp_path / "found.tsv").exists()
    assert json == "-" or (tmp_path / json).exists()
    assert '"verified": true' in out or "PASSED" in out


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.not_here", "not_here"])
def test_what_others_chose_to_draw_with_does_not_matter(
    spawn: Spawn, problem: Path, tmp_path: Path, backend: str
) -> None:
    """As Jupyter does, also for the processes that it starts."""
    process = spawn("infer", problem, "--plot", tmp_path / "r.png", env={"MPLBACKEND": backend})
    _, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert (tmp_path / "r.png").exists()


def test_closed_streams(problem: Path) -> None:
    command = f'"{sys.executable}" -m sparsenn infer "{problem}" >&- 2>&-'
    assert subprocess.run(command, shell=True, timeout=240).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("infer", "{problem}", "--output", "found.h5"),
        ("infer", "{problem}", "--json", "found.json"),
        ("challenge", "convert", "{problem}", "copy"),
        ("challenge", "generate", "new.h5", "--layers", "3", "--images", "100", "--inputs", "digits"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_a_file_that_cannot_grow(
    run: Run,
    spawn: Spawn,
    problem: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    """The limit on file sizes makes a write fail half-way, as a full disk does."""
    command = [argument.format(problem=problem) for argument in arguments]
    with tempfile.TemporaryDirectory() as elsewhere:  # so that compiled kernels and fonts are in their caches
        monkeypatch.chdir(elsewhere)
        assert run(*command).exit_code == 0
    limit = (resource.RLIMIT_FSIZE, (1500, 1500))
    process = spawn(*command, cwd=tmp_path, preexec_fn=lambda: resource.setrlimit(*limit))
    _, err = process.communicate(timeout=240)
    assert process.returncode == 2, err
    assert err.startswith("error: cannot write ")
    assert "Traceback" not in err
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]
    assert all(path.suffix == ".json" for path in tmp_path.glob("cache/choices/*"))


def test_output_that_the_stream_cannot_encode(spawn: Spawn, problem: Path) -> None:
    process = spawn("infer", problem, "--stats", env={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=240)
    assert (process.returncode, err) == (0, "")
    assert "200 samples ? 1,024 neurons" in out
