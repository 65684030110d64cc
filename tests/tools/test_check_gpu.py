"""tools/check_gpu, with an nvidia-smi and a compute-sanitizer that only say what they are told; no GPU is needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NVIDIA_SMI = """\
#!/bin/sh
[ "$1" = -L ] || exit 1
for number in $GPUS; do echo "GPU $number: NVIDIA Test (UUID: GPU-0$number)"; done
echo "  MIG 1g.10gb     Device  0: (UUID: MIG-0)"
"""

SANITIZER = """\
#!{python}
import os, subprocess, sys
from pathlib import Path

begin = sys.argv.index("--log-file") + 2
Path(os.environ["NOTES"], "asked").write_text(" ".join(sys.argv[1:begin - 2]))
Path(sys.argv[begin - 1].replace("%p", "7")).write_text(os.environ["REPORT"])
sys.exit(subprocess.call(sys.argv[begin:]))
"""

TESTS = """\
import os
from pathlib import Path
import pytest

pytestmark = pytest.mark.gpu

@pytest.fixture
def broken():
    raise OSError("no disk")

@pytest.mark.parametrize("number", range(20))
def test_number(number):
    with Path(os.environ["NOTES"], "seen").open("a") as file:
        print(os.environ["CUDA_VISIBLE_DEVICES"], os.getpid(), file=file)

def test_wrong():
    raise ValueError("first line\\nsecond")

def test_broken(broken):
    pass

@pytest.mark.skip(reason="no data")
def test_skipped():
    pass

def test_crash():
    os.abort()

@pytest.mark.alone
def test_alone():
    assert len(Path(os.environ["NOTES"], "seen").read_text().splitlines()) == 20
"""

PASSING = "import pytest\n\n@pytest.mark.gpu\ndef test_it():\n    pass\n"

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cases(repository: Path, tmp_path: Path) -> Path:
    """The folder of tests, still empty, of a copy of the project."""
    project = tmp_path / "a project"
    plugins = [f"tests/plugins/{name}.py" for name in ("gpu_workers", "poisoned")]
    for name in ("bench/results_file.py", *plugins, "tools/check_gpu", "pyproject.toml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / name, project / name)
    (tmp_path / "commands").mkdir()
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("compute-sanitizer", SANITIZER)):
        command = tmp_path / "commands" / name
        command.write_text(text.replace("{python}", sys.executable))
        command.chmod(0o755)
    return project / "tests"


@pytest.fixture
def notes(cases: Path) -> Path:
    """The folder where tests leave notes, and the summary is written."""
    return cases.parent.parent


@pytest.fixture
def check(cases: Path, notes: Path) -> Check:
    """Run the tool in the folder of tests. Returns exit code, output, and complaint."""

    def run(*arguments: str, **more: str) -> tuple[int, str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        kept |= {"GPUS": "0 1", "NOTES": str(notes), "SPARSENN_COMMIT": "0123abc"}
        done = subprocess.run(
            [sys.executable, "../tools/check_gpu", "--json", str(notes / "out" / "summary.json"), *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=cases,
            env=kept | {"PATH": f"{notes / 'commands'}{os.pathsep}{os.environ['PATH']}"} | more,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


def summary(notes: Path) -> dict[str, Any]:
    content = json.loads((notes / "out" / "summary.json").read_text())
    assert isinstance(content, dict)
    return content


def test_tests_are_spread_over_the_gpus_and_failures_counted(cases: Path, notes: Path, check: Check) -> None:
    (cases / "test_many.py").write_text(TESTS)
    (cases / "test_few.py").write_text(f"{PASSING}\ndef test_without_gpu():\n    assert False\n")
    code, out, _ = check("--processes", "2")
    content = summary(notes)
    assert (code, content["exit_code"], content["gpus"], content["processes"]) == (1, 1, ["0", "1"], 2)
    assert content["totals"] == {"tests": 26, "passed": 22, "failed": 3, "skipped": 1, "not_run": 0}
    assert {row["file"]: (row["passed"], row["failed"]) for row in content["files"]} == {
        "tests/test_few.py": (1, 0),
        "tests/test_many.py": (21, 3),
    }
    seen = {tuple(line.split()) for line in (notes / "seen").read_text().splitlines()}
    assert {gpu for gpu, _ in seen} == {"0", "1"}
    messages = {failure["test"].partition("::")[2]: failure["message"] for failure in content["failures"]}
    assert messages["test_wrong"] == "ValueError: first line"
    assert "no disk" in messages["test_broken"]
    assert "crashed" in messages["test_crash"]
    assert content["skips"] == {"Skipped: no data": 1}
    assert (content["commit"], content["versions"]["python"]) == ("0123abc", sys.version.split()[0])
    assert "FAILED tests/test_many.py::test_wrong: ValueError: first line\n" in out
    assert out.splitlines()[-1].startswith("26 tests: 22 passed, 3 failed, 1 skipped, 0 not run, on GPU 0, 1 in ")


def test_memory_is_poisoned_where_that_is_asked_for(cases: Path, notes: Path, check: Check) -> None:
    (cases / "cupy.py").write_text(
        "from types import SimpleNamespace\n\nclass Memory:\n    filled = []\n"
        "    def memset_async(self, value, size):\n        self.filled.append((value, size))\n\n"
        "pool = SimpleNamespace(malloc=lambda size: Memory())\ncuda = SimpleNamespace(allocate=pool.malloc)\n"
        "cuda.set_allocator = lambda allocate: setattr(cuda, 'allocate', allocate)\n"
        "get_default_memory_pool = lambda: pool\n"
    )
    (cases / "test_memory.py").write_text(
        "import pytest, cupy\n\n@pytest.mark.gpu\ndef test_memory():\n"
        "    filled = [cupy.cuda.allocate(size) for size in (12, 0, 7)][0].filled\n"
        "    assert filled == [(255, 12), (255, 7)]\n"
    )
    assert check("--gpus", "1", "--poison", "test_memory.py", PYTHONPATH=str(cases))[0] == 0
    assert summary(notes)["poisoned"] is True
    assert check("--gpus", "1", "test_memory.py", PYTHONPATH=str(cases))[0] == 1


@pytest.mark.gpu
def test_poisoned_memory_of_a_gpu_is_not_a_number(repository: Path, tmp_path: Path) -> None:
    test = tmp_path / "test_memory.py"
    test.write_text("import cupy\n\ndef test_memory():\n    assert cupy.isnan(cupy.empty(1000, cupy.float32)).all()\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "poisoned",
        "--rootdir",
        str(tmp_path),
        "-c",
        os.devnull,
        str(test),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(repository / "tests/plugins")}
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("report", "code", "verdict"),
    [
        ("========= ERROR SUMMARY: 0 errors\n", 0, "clean"),
        ("========= Error: Race at tile+0x10\n========= RACECHECK SUMMARY: 1 hazard displayed\n", 1, "flagged"),
        ("========= Error: Target application terminated\n", 1, "no closing line"),
    ],
)
def test_reports_of_the_sanitizer(cases: Path, notes: Path, check: Check, report: str, code: int, verdict: str) -> None:
    (cases / "test_it.py").write_text(PASSING)
    found, out, _ = check("--gpus", "1", "--under", "memcheck", REPORT=report)
    assert (found, summary(notes)["sanitizer"]["verdict"]) == (code, verdict)
    assert f"; memcheck: {verdict}\n" in out
    assert ("Error: Race at tile+0x10" in out) == (verdict == "flagged")
    asked = (notes / "asked").read_text()
    assert asked.startswith("--tool memcheck --print-limit 20 --target-processes all --kernel-name-exclude ")


def test_tests_that_run_when_the_time_is_over_are_ended(cases: Path, notes: Path, check: Check) -> None:
    (cases / "test_long.py").write_text(
        f"{PASSING}\n@pytest.mark.gpu\ndef test_long():\n    import time\n    time.sleep(600)\n"
    )
    for limit in ("8", "30", "100"):  # the machine may be so busy that nothing is even begun
        code, out, complaint = check("--gpus", "1", "--seconds", limit)
        if "not even collected" not in complaint:
            break
    assert code == 3
    assert "tests/test_long.py::test_long" in summary(notes)["not_run"]
    assert "NOT RUN tests/test_long.py::test_long\n" in out


def test_where_all_is_skipped_nothing_was_checked(cases: Path, notes: Path, check: Check) -> None:
    (cases / "test_skipped.py").write_text(
        "import pytest\n\n@pytest.mark.gpu\n@pytest.mark.skip\ndef test_it():\n    pass\n"
    )
    assert check("--gpus", "1")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ((), {"GPUS": ""}, "nvidia-smi -L lists no GPU"),
        ((), {"CUDA_VISIBLE_DEVICES": "2,0"}, "CUDA_VISIBLE_DEVICES=2,0 leaves none of the 2 GPUs"),
        (("--gpus", "3"), {}, "3 GPUs are asked for, 2 can be used"),
        (("--gpus", "0"), {}, "'0' is no number to run on; give 1 or more"),
        (("--seconds", "soon"), {}, "'soon' is no time; give seconds, such as 600"),
        ((), {}, "no test that is marked gpu"),
        (("..", "../.."), {}, "../.. is outside"),
        (("test_missing.py",), {}, "test_missing.py: there is no such file"),
        (("--under", "synccheck"), {"PATH": "commands"}, "no compute-sanitizer on the PATH"),
    ],
)
def test_where_nothing_can_be_run(
    cases: Path, notes: Path, check: Check, arguments: tuple[str, ...], more: dict[str, str], message: str
) -> None:
    (cases / "test_plain.py").write_text("def test_it():\n    pass\n")
    code, _, complaint = check(*arguments, **more)
    assert code == 2
    assert message in complaint
    assert not (notes / "out").exists()
