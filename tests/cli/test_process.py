"""The program as a process: exit codes, pipes, terminals, full disks and interrupts."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from children import terminal
from command_line import Spawn, ended

# Slow on purpose: the naive kernel, with nothing left out.
SLOW = ("--kernel", "sequential", "--no-compaction", "--no-deduplication", "--no-merging", "--batch-size", 1)


def test_piped_output_has_no_progress_and_no_escapes(spawn: Spawn, problem: Path) -> None:
    code, out, err = ended(spawn("infer", problem, "--stats", env={"TERM": "xterm-256color"}))
    assert (code, err) == (0, "")
    assert "PASSED" in out
    assert "\x1b" not in out


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
    while not process.stderr.readline().startswith("layers"):
        assert process.poll() is None
    process.send_signal(number)
    returned, out, err = ended(process)
    assert (returned, out) == (code, "")
    assert err.endswith(f"error: {message}\n")
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_reader_that_stops_reading_is_no_error(spawn: Spawn, problem: Path) -> None:
    process = spawn("infer", problem, "--stats")
    process.stdout.close()
    assert process.wait(timeout=240) == 141
    assert process.stderr.read() == ""


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_a_log_is_added_to(spawn: Spawn, problem: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "log").write_text("IMPORTANT\n")
    with (tmp_path / "log").open("a") as log:
        code, _, err = ended(spawn("infer", problem, "--json", name, stdout=log))
    text = (tmp_path / "log").read_text()
    assert (code, err) == (0, "")
    assert text.startswith("IMPORTANT\n")
    assert "PASSED" in text
    assert json.loads(text[text.index("{\n") :])["verified"] is True


def test_full_disk_behind_stdout(spawn: Spawn, problem: Path) -> None:
    with Path("/dev/full").open("w") as full:
        code, _, err = ended(spawn("infer", problem, stdout=full))
    assert (code, err) == (2, "error: No space left on device\n")


def test_output_that_the_stream_cannot_encode(spawn: Spawn, problem: Path) -> None:
    code, out, err = ended(spawn("infer", problem, "--stats", env={"PYTHONIOENCODING": "ascii"}))
    assert (code, err) == (0, "")
    assert "200 samples ? 1,024 neurons" in out
