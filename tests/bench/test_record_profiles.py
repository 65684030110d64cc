"""Recorded profiles: what ncu tells becomes a row, and what it does not tell is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import record_profiles
from results_file import read_results

HEAD = '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'


def details(*launches: tuple[str, str, str, tuple[float, ...]]) -> str:
    """What ncu prints: of each launch, its kernel, duration and unit, and the shares in percent."""
    lines = ["==PROF== Connected to process 7", "made by the program", HEAD]
    for number, (kernel, duration, unit, shares) in enumerate(launches):
        said = {"Duration": (unit, duration), "Elapsed Cycles": ("cycle", "1,234")}
        said |= {
            name: ("%", f"{share:.2f}") for name, share in zip(record_profiles.UNITS.values(), shares, strict=False)
        }
        lines += [f'"{number}","7","{kernel}","some","{name}","{of}","{value}"' for name, (of, value) in said.items()]
    return "\n".join(lines) + "\n"


FULL = details(
    ("gather_chunks(const char *, float)", "3,500", "ns", (10, 10, 10, 10, 10)),
    ("gather_chunks(const char *, float)", "4.50", "ms", (40, 60, 80, 30, 5)),
)


def test_each_launch_is_read() -> None:
    short, long = record_profiles.launches(FULL)
    assert (short["kernel"], short["milliseconds"]) == ("gather_chunks", pytest.approx(3.5e-3))
    assert (long["kernel"], long["milliseconds"]) == ("gather_chunks", 4.5)
    assert [long[key] for key in record_profiles.UNITS] == [0.4, 0.6, 0.8, 0.3, 0.05]


def test_launches_of_a_kernel_are_added_up() -> None:
    given = details(
        ("second(int)", "1.0", "ms", (40, 60, 80, 30, 5)),
        ("first(int)", "1.0", "ms", (80, 10, 10, 10, 10)),
        ("first(int)", "3.0", "ms", (20, 10, 60, 10, 10)),
        ("too_short(int)", "0.2", "ms", (20, 10, 60, 10, 10)),
    )
    case = record_profiles.CASES[0]
    first, second = record_profiles.rows_of(case, record_profiles.launches(given))
    assert (first["kernel"], first["launches"], second["kernel"], second["launches"]) == ("first", 2, "second", 1)
    assert [first[key] for key in record_profiles.UNITS] == pytest.approx([0.35, 0.1, 0.475, 0.1, 0.1])
    assert (first["milliseconds"], first["share"]) == pytest.approx((4.0, 4.0 / 5.2))
    assert (first["bound"], first["floor_milliseconds"]) == ("shared memory", pytest.approx(0.8 + 1.8))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("==PROF== Disconnected\n", "saw no kernel"),
        (details(("gather_chunks()", "4.5", "ms", (40, 60, 80))), "L2 Cache Throughput"),
        (details(("gather_chunks()", "4.5", "fortnight", (40, 60, 80, 30, 5))), "fortnight"),
        (details(("gather_chunks()", "n/a", "ms", (40, 60, 80, 30, 5))), "n/a"),
    ],
    ids=["nothing", "a unit is missing", "an unknown unit of time", "no number"],
)
def test_what_the_profiler_does_not_tell_is_said(text: str, told: str) -> None:
    with pytest.raises(record_profiles.ProfileError, match=told):
        record_profiles.launches(text)


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named ncu, and results in a folder of their own; returns the file of what it prints.

    It fails for one case, and where it is to profile more than the part of a process that asks for it.
    """
    printed, program = tmp_path / "printed", tmp_path / "ncu"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *16384-tf32*) echo "no device" >&2; exit 3;; esac\n'
        f'case "$*" in *"--profile-from-start off"*) cat {printed};; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(record_profiles, "results_path", lambda name, folder: tmp_path / folder / f"{name}.json")
    return printed


def keys(*words: str) -> list[str]:
    cases = [case for case in record_profiles.CASES if case.table == record_profiles.TABLE]
    return [case.key for case in cases if all(word in case.key for word in words)]


def test_each_case_gets_its_bound_and_floor(profiler: Path, tmp_path: Path) -> None:
    profiler.write_text(FULL)
    (key,) = keys("16384", "float32")
    assert record_profiles.main(["--only", key, "--machine", "lab"]) == 0
    (row,) = read_results(tmp_path / "lab" / "profiles.json").rows
    assert (row["key"], row["bound"], row["launches"]) == (key, "shared memory", 2)
    assert row["floor_milliseconds"] == pytest.approx(3.6 + 0.00035)


def test_a_case_that_fails_is_left_out(profiler: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiler.write_text(FULL)
    failing, working = keys("16384", "tf32") + keys("16384", "float32")
    assert record_profiles.main(["--only", failing, working, "--machine", "lab"]) == 1
    assert f"{failing}: no device" in capsys.readouterr().err
    result = read_results(tmp_path / "lab" / "profiles.json")
    assert [row["key"] for row in result.rows] == [working]
    assert "not profiled" in " ".join(result.notes)


def test_wrong_names_and_a_missing_profiler_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record_profiles.main(["--only", "no-such-case"]) == 2
    monkeypatch.setenv("PATH", str(tmp_path))
    assert record_profiles.main([]) == 2
    said = capsys.readouterr().err
    assert "no case no-such-case" in said
    assert "no ncu on the PATH" in said
