"""tools/check_gpu, with an nvidia-smi and a compute-sanitizer that only say what they are told; no GPU is needed."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from children import interrupts_obeyed

NVIDIA_SMI = """\
#!/bin/sh
[ "$1" = -L ] || exit 1
for number in $GPUS; do echo "GPU $number: NVIDIA Test (UUID: GPU-0$number)"; done
echo "  MIG 1g.10gb     Device  0: (UUID: MIG-0)"
"""

SANITIZER = """\
#!{python}
import os, re, subprocess, sys
from pathlib import Path

if sys.argv[1:] == ["--version"]:
    print("NVIDIA (R) Compute Sanitizer")
    sys.exit(print("Version 2025.3.1"))
begin = sys.argv.index("--log-file") + 2
notes = Path(os.environ["NOTES"])
with (notes / "asked").open("a") as asked:
    print(*sys.argv[1:], file=asked)
code = subprocess.call(sys.argv[begin:])
told = [path for path in (notes / "reports").iterdir() if any(path.stem in word for word in sys.argv[begin:])]
text = told[0].read_text() if told else os.environ["CLEAN"]
Path(sys.argv[begin - 1]).write_text(text)
found = any(map(int, re.findall(r"\\d+ (?=error|warning|hazard)", text)))
sys.exit(9 if found else code)
"""

CLEAN = {
    "memcheck": "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}

PASSING = "import pytest\n\n@pytest.mark.gpu\ndef test_it():\n    pass\n"
NO_GPU = "import pytest\n\n@pytest.mark.gpu\n@pytest.mark.skip(reason='no GPU')\ndef test_it():\n    pass\n"

LAUNCHING = """\
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from sparsenn.backends.cuda.runtime import loader

SOURCE = "studies/spmspm/kernels/{source}.cu"


class Kernel:
    num_regs = 40

    def __init__(self, name):
        self.name, self.kernel, self.launched = name, self.launch, []

    def launch(self, *arguments, **settings):
        self.launched.append((arguments, settings))
        return self.name

    __call__ = launch


def raw_module(code, options):
    return SimpleNamespace(compile=lambda: None, get_function=Kernel, get_global=lambda name: (name, code))


@pytest.mark.gpu
def test_kernels(monkeypatch):
    runtime = SimpleNamespace(getDevice=lambda: 0)
    compiler = SimpleNamespace(CompileException=ValueError)
    cuda = SimpleNamespace(runtime=runtime, compiler=compiler, driver=SimpleNamespace(CUDADriverError=OSError))
    cuda.Device = lambda number: nullcontext()
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(RawModule=raw_module, cuda=cuda))
    program = loader.Program(SOURCE, {{}})
    assert program.constant("weights") == ("weights", loader.source_text(SOURCE))
    program.kernel("never_launched")
    kernel = program.kernel("{kernel}")
    assert program.kernel("{kernel}") is kernel
    kernel.max_dynamic_shared_size_bytes = 7
    assert (kernel.num_regs, kernel._kernel.max_dynamic_shared_size_bytes) == (40, 7)
    assert kernel((1,), (2,), (3,), shared_mem=4) == "{kernel}"
    assert kernel.launched == [(((1,), (2,), (3,)), {{"shared_mem": 4}})]
    assert program.kernel("whole").kernel((1,), enable_cooperative_groups=True) == "whole"
"""

SOURCES = "studies/spmspm/kernels/"
"""Where those sources are that `LAUNCHING` launches."""

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cases(repository: Path, tmp_path: Path) -> Path:
    """The folder of tests, still empty, of a copy of the project; see `notes` for what lies beside that."""
    project = tmp_path / "a project"
    plugins = [f"tests/plugins/{name}.py" for name in ("chosen", "launches", "poisoned")]
    for name in ("bench/results_file.py", *plugins, "tools/check_gpu", "pyproject.toml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / name, project / name)
    (project / "sparsenn").symlink_to(repository / "sparsenn")
    for name in ("reports", "commands"):
        (tmp_path / name).mkdir()
    for name, text in (("nvidia-smi", NVIDIA_SMI), ("compute-sanitizer", SANITIZER)):
        command = tmp_path / "commands" / name
        command.write_text(text.replace("{python}", sys.executable))
        command.chmod(0o755)
    return project / "tests"


@pytest.fixture
def notes(cases: Path) -> Path:
    """The folder where tests leave notes; in its `reports`, by test file, is what the sanitizer's stand-in says."""
    return cases.parent.parent


def surroundings(notes: Path, tool: str | None, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    told = {"GPUS": "0 1", "NOTES": str(notes), "CLEAN": CLEAN.get(tool or "", ""), "SPARSENN_COMMIT": "0123abc"}
    return kept | told | {"PATH": f"{notes / 'commands'}{os.pathsep}{os.environ['PATH']}"} | more


@pytest.fixture
def check(cases: Path, notes: Path) -> Check:
    """Run the tool in the folder of tests. Returns exit code, output, and complaint."""

    def run(*arguments: str, tool: str | None = None, **more: str) -> tuple[int, str, str]:
        command = [sys.executable, "../tools/check_gpu", *(["--under", tool] if tool else [])]
        done = subprocess.run(
            [*command, "--json", str(notes / "out" / "summary.json"), *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=cases,
            env=surroundings(notes, tool, **more),
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


def summary(notes: Path) -> dict[str, Any]:
    content = json.loads((notes / "out" / "summary.json").read_text())
    assert isinstance(content, dict)
    return content


def by_name(content: dict[str, Any]) -> dict[str, Any]:
    return {Path(row["file"]).stem.removeprefix("test_"): row for row in content["files"]}


@pytest.mark.parametrize("poisons", [True, False])
def test_memory_is_poisoned_where_that_is_asked_for(cases: Path, notes: Path, check: Check, poisons: bool) -> None:
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
        f"    assert filled == {[(255, 12), (255, 7)] if poisons else []}\n"
    )
    code, out, _ = check(*(["--poison"] if poisons else []), "test_memory.py", PYTHONPATH=str(cases))
    assert (code, out.splitlines()[-1][:16]) == (0, "1 tests: 1 passe")
    assert summary(notes)["poisoned"] is poisons


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


def test_groups_are_spread_over_the_gpus_and_one_at_a_time_runs_on_each(cases: Path, notes: Path, check: Check) -> None:
    (cases / "test_many.py").write_text(
        "import os\nfrom pathlib import Path\nimport pytest\n\n"
        "@pytest.fixture(scope='module', autouse=True)\ndef alone():\n"
        "    busy = Path(os.environ['NOTES'], 'busy-' + os.environ['CUDA_VISIBLE_DEVICES'])\n"
        "    busy.mkdir()\n    yield\n    busy.rmdir()\n\n"
        "@pytest.mark.gpu\n@pytest.mark.parametrize('number', range(130))\ndef test_number(number):\n"
        "    with Path(os.environ['NOTES'], 'seen').open('a') as file:\n"
        "        print(os.environ['CUDA_VISIBLE_DEVICES'], os.getpid(), file=file)\n"
    )
    (cases / "test_few.py").write_text(f"{PASSING}\ndef test_without_gpu():\n    assert False\n")
    code, out, said = check("--seconds", "100", "--gpus", "2", "../tests")
    assert (code, said) == (0, "")
    content = summary(notes)
    seen = {tuple(line.split()) for line in (notes / "seen").read_text().splitlines()}
    assert {gpu for gpu, _ in seen} == {"0", "1"} == {group["gpu"] for group in content["groups"]}
    assert len(seen) == 5
    sizes = [(Path(group["file"]).name, group["tests"], group["state"]) for group in content["groups"]]
    many = [("test_many.py", 26, "finished")] * 5
    assert sizes == [("test_few.py", 1, "finished"), *many]
    assert content["totals"] == {"tests": 131, "passed": 131, "failed": 0, "skipped": 0, "unfinished": 0, "not_run": 0}
    assert (content["tool"], content["kernels"], content["exit_code"], content["gpus"]) == (None, None, 0, ["0", "1"])
    assert (content["paths"], content["keep"], content["limit"]) == (["../tests"], None, 100)
    assert {"cpu", "cores", "gpu"} <= content["machine"].keys()
    assert content["versions"]["pytest"] == pytest.__version__
    assert content["commit"] == "0123abc"
    head, *rows, last = out.splitlines()
    assert head.split() == ["file", "passed", "failed", "skipped", "not", "run", "seconds"]
    assert [row.split()[1:5] for row in rows] == [["1", "0", "0", "0"], ["130", "0", "0", "0"]]
    assert last.startswith("131 tests: 131 passed, 0 failed, 0 skipped, 0 not run, on GPU 0, 1 in ")


@pytest.mark.slow
def test_groups_share_a_gpu_but_for_those_that_run_alone(cases: Path, notes: Path, check: Check) -> None:
    meeting = (
        "import os, time\nfrom pathlib import Path\nimport pytest\n\nnotes = Path(os.environ['NOTES'])\n\n"
        "@pytest.mark.gpu\ndef test_meet():\n    (notes / Path(__file__).stem).touch()\n"
        "    end = time.monotonic() + 240\n"
        "    while not all((notes / f'test_{name}').exists() for name in ('one', 'two')):\n"
        "        assert time.monotonic() < end\n        time.sleep(0.05)\n"
        "    time.sleep(0.5)\n    (notes / f'{Path(__file__).stem}-left').touch()\n"
    )
    for name in ("one", "two"):
        (cases / f"test_{name}.py").write_text(meeting)
    (cases / "test_alone.py").write_text(
        "import os\nfrom pathlib import Path\nimport pytest\n\n@pytest.mark.gpu\n@pytest.mark.alone\n"
        "def test_nobody_else():\n"
        "    assert len(list(Path(os.environ['NOTES']).glob('*-left'))) == 2\n"
    )
    code, _, said = check("--gpus", "1", "--processes", "3")
    assert (code, said) == (0, "")
    content = summary(notes)
    assert content["totals"]["passed"] == 3
    assert content["processes"] == 3
    assert content["groups"][-1]["file"].endswith("test_alone.py")


@pytest.mark.slow
def test_every_name_reaches_pytest_as_it_is(cases: Path, notes: Path, check: Check) -> None:
    names = ["a b", "it's", '"quoted"', "[x]", "$(touch NOTES)", "a::b", "a/b", "@file", "-k", "é", "semi;colon", "\\"]
    (cases / "test_names.py").write_text(
        f"import pytest\n\n@pytest.mark.gpu\nclass TestClass:\n    @pytest.mark.parametrize('name', {names})\n"
        "    def test_name(self, name):\n        pass\n\n    def test_other(self):\n        raise OSError\n"
    )
    code, _, said = check("--keep", "test_name and not other", "--gpus", "1", CUDA_VISIBLE_DEVICES="1,GPU-7,9")
    assert (code, said) == (0, "")
    content = summary(notes)
    assert content["gpus"] == ["1"]
    assert content["totals"] | {"tests": 12, "passed": 12} == content["totals"]


def test_failures_and_crashes_are_told_and_the_rest_is_counted(cases: Path, notes: Path, check: Check) -> None:
    (cases / "test_fails.py").write_text(
        "import pytest\n\npytestmark = pytest.mark.gpu\n\n"
        "@pytest.fixture\ndef broken():\n    raise OSError('no disk')\n\n"
        "def test_good():\n    pass\n\ndef test_wrong():\n    raise ValueError('first line\\nsecond')\n\n"
        "def test_broken(broken):\n    pass\n\n@pytest.mark.skip(reason='no data')\ndef test_skipped():\n    pass\n"
    )
    (cases / "test_crash.py").write_text(
        "import os\nimport pytest\n\npytestmark = pytest.mark.gpu\n\ndef test_before():\n    pass\n\n"
        "def test_crash():\n    os.abort()\n\ndef test_after():\n    pass\n"
    )
    (cases / "test_passes.py").write_text(PASSING)
    code, out, said = check()
    assert (code, said) == (1, "")
    content = summary(notes)
    counts = {name: (row["passed"], row["failed"], row["skipped"]) for name, row in by_name(content).items()}
    assert counts == {"fails": (1, 2, 1), "crash": (1, 2, 0), "passes": (1, 0, 0)}
    told = {failure["test"].partition("::")[2]: failure["message"] for failure in content["failures"]}
    assert told["test_wrong"] == "ValueError: first line"
    assert "no disk" in told["test_broken"]
    assert re.match(r"pytest ended with exit code -6, 2 tests have no result: Fatal Python error", told["test_crash"])
    assert content["skips"] == {"no data": 1}
    assert "test_fails.py::test_wrong: ValueError: first line\n" in out
    assert out.splitlines()[-1].startswith("8 tests: 3 passed, 4 failed, 1 skipped, 0 not run, on GPU 0, 1 in ")


def all_sources(repository: Path) -> set[str]:
    """Every source there is, as programs name it."""
    package = repository / "sparsenn"
    own = package / "backends" / "cuda" / "kernels"
    names = {path.relative_to(own if own in path.parents else package) for path in package.rglob("*.cu")}
    return {name.as_posix() for name in names}


@pytest.mark.slow
def test_a_clean_run_tells_the_kernels_that_it_saw(cases: Path, notes: Path, check: Check, repository: Path) -> None:
    (cases / "test_first.py").write_text(LAUNCHING.format(source="01_naive", kernel="spmspm"))
    (cases / "test_second.py").write_text(LAUNCHING.format(source="08_tile", kernel="tile"))
    timing = "\n@pytest.mark.gpu\n@pytest.mark.alone\ndef test_time():\n    assert False\n"
    (cases / "test_third.py").write_text(PASSING + timing)
    (cases / "test_empty.py").write_text(NO_GPU)
    (notes / "reports" / "test_empty.txt").write_text("========= Error: Target application terminated\n")
    code, out, said = check(tool="memcheck")
    assert (code, said) == (0, "")
    content = summary(notes)
    verdicts = {name: row["verdict"] for name, row in by_name(content).items()}
    assert verdicts == {"first": "clean", "second": "clean", "third": "clean", "empty": "nothing ran"}
    assert (content["tool"], content["versions"]["compute-sanitizer"]) == ("memcheck", "2025.3.1")
    assert [group["closing"] for group in content["groups"]].count(["ERROR SUMMARY: 0 errors"]) == 3
    kernels = content["kernels"]
    launched = [SOURCES + name for name in ("01_naive.cu:spmspm", "01_naive.cu:whole", "08_tile.cu:tile")]
    assert (kernels["clean"], kernels["not_clean"]) == ([*launched, f"{SOURCES}08_tile.cu:whole"], [])
    assert set(kernels["not_run"]) == all_sources(repository) - {f"{SOURCES}01_naive.cu", f"{SOURCES}08_tile.cu"}
    for asked in (notes / "asked").read_text().splitlines():
        options = "--tool memcheck --error-exitcode 9 --print-limit 20 --target-processes all "
        options += "--kernel-name-exclude kernel_substring=cupy_ --log-file "
        assert asked.startswith(options)
        assert int(re.search(r"--timeout=(\d+)", asked)[1]) > 300
    assert "memcheck: 3 of 4 groups clean, 4 kernels in clean groups only" in out.splitlines()[-1]


@pytest.mark.slow
def test_reports_flag_a_group_and_its_kernels(cases: Path, notes: Path, check: Check) -> None:
    (cases / "test_hazard.py").write_text(LAUNCHING.format(source="01_naive", kernel="spmspm"))
    (cases / "test_cut.py").write_text(LAUNCHING.format(source="08_tile", kernel="tile"))
    (cases / "test_mixed.py").write_text(LAUNCHING.format(source="08_tile", kernel="tile"))
    (cases / "test_clean.py").write_text(LAUNCHING.format(source="03_coarsened", kernel="spmspm"))
    hazard = "========= Error: Race reported between Write access at tile+0x10\n=========     Host Frame: main\n"
    reports = {
        "hazard": f"{hazard}========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n",
        "cut": "========= ERROR SUMMARY: 0 errors\n",
        "mixed": CLEAN["racecheck"] + "========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)\n",
    }
    for name, text in reports.items():
        (notes / "reports" / f"test_{name}.txt").write_text(text)
    code, out, said = check(tool="racecheck")
    assert (code, said) == (1, "")
    content = summary(notes)
    rows = by_name(content)
    verdicts = {name: row["verdict"] for name, row in rows.items()}
    assert verdicts == {"hazard": "flagged", "cut": "no closing line", "mixed": "flagged", "clean": "clean"}
    assert content["totals"]["passed"] == 4
    assert content["failures"] == []
    groups = {Path(group["file"]).name: group for group in content["groups"]}
    assert groups["test_hazard.py"]["report"] == ["Error: Race reported between Write access at tile+0x10"]
    assert groups["test_hazard.py"]["closing"] == ["RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"]
    assert content["kernels"]["clean"] == [f"{SOURCES}03_coarsened.cu:{name}" for name in ("spmspm", "whole")]
    assert len(content["kernels"]["not_clean"]) == 4
    assert "    Error: Race reported between Write access at tile+0x10\n" in out
    assert "NO CLOSING LINE: 1 tests from " in out
    assert "racecheck: 1 of 4 groups clean" in out.splitlines()[-1]


@pytest.mark.slow
def test_what_runs_when_the_time_is_over_is_ended_and_told(cases: Path, notes: Path, check: Check) -> None:
    sleeping = "\n@pytest.mark.gpu\ndef test_long():\n    import time\n    time.sleep(600)\n"
    (cases / "test_long.py").write_text(PASSING + sleeping)
    (cases / "test_waiting.py").write_text(PASSING)
    for limit in (5, 20, 80):  # the machine may be so busy that nothing is even begun
        code, out, said = check("--gpus", "1", "--seconds", str(limit))
        if "not even collected" not in said:
            break
    assert (code, said) == (3, "")
    content = summary(notes)
    assert [Path(test).name for test in content["not_run"]] == ["test_waiting.py::test_it"]
    assert Path(content["unfinished"][-1]).name == "test_long.py::test_long"
    assert [group["state"] for group in content["groups"]] == ["unfinished", "not run"]
    rows = by_name(content)
    assert (rows["waiting"]["not_run"], rows["waiting"]["verdict"]) == (1, "not run")
    assert (rows["long"]["passed"] + rows["long"]["unfinished"], rows["long"]["verdict"]) == (2, "unfinished")
    assert content["seconds"] < limit + 60
    assert "UNFINISHED 2 tests from " in out


@pytest.mark.slow
def test_an_interrupted_run_ends_every_process_and_keeps_what_is_known(cases: Path, notes: Path) -> None:
    (cases / "test_stuck.py").write_text(
        "import os, signal, subprocess, time\nfrom pathlib import Path\nimport pytest\n\n"
        "pytestmark = pytest.mark.gpu\n\ndef test_wrong():\n    assert False\n\n"
        "def test_good():\n    pass\n\ndef test_stuck():\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    child = subprocess.Popen(['sleep', '600'])\n"
        "    note = Path(os.environ['NOTES'], 'note')\n    note.write_text(f'{os.getpid()} {child.pid}')\n"
        "    note.rename(note.with_name('processes'))\n    time.sleep(600)\n"
    )
    master, slave = pty.openpty()
    with interrupts_obeyed():
        process = subprocess.Popen(
            [sys.executable, "../tools/check_gpu", "--under", "memcheck", "--json", str(notes / "out/summary.json")],
            stdout=subprocess.PIPE,
            stderr=slave,
            text=True,
            cwd=cases,
            env=surroundings(notes, "memcheck"),
        )
    os.close(slave)
    note = notes / "processes"
    with process:
        try:
            wait_until(note.exists)
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=240)
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 1
    for number in map(int, note.read_text().split()):
        wait_until(lambda number=number: not runs(number))
    group = summary(notes)["groups"][0]
    assert (group["passed"], group["failed"], group["verdict"]) == (1, 1, "unfinished")
    assert group["running"].endswith("::test_stuck")
    assert [Path(test).name for test in summary(notes)["unfinished"]] == ["test_stuck.py::test_stuck"]
    assert "last begun: " in out
    assert b"0 of 1 groups ended, 1 running, 0 tests failed; " in os.read(master, 1 << 16)
    os.close(master)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def runs(number: int) -> bool:
    """Whether a process runs; one that ended and that nobody asked for yet does not."""
    try:
        os.kill(number, 0)
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_where_all_is_skipped_nothing_was_checked(cases: Path, notes: Path, check: Check) -> None:
    (cases / "test_skipped.py").write_text(NO_GPU)
    code, out, _ = check()
    assert code == 2
    assert summary(notes)["skips"] == {"no GPU": 1}
    assert "SKIPPED 1: no GPU\n" in out


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ((), {"GPUS": ""}, "nvidia-smi -L lists no GPU"),
        ((), {"CUDA_VISIBLE_DEVICES": ""}, "leaves none of the 2 GPUs; unset or change it"),
        ((), {"CUDA_VISIBLE_DEVICES": "2,0"}, "CUDA_VISIBLE_DEVICES=2,0 leaves none of the 2 GPUs"),
        (("--gpus", "3"), {}, "3 GPUs are asked for, 2 can be used"),
        (("--gpus", "0"), {}, "'0' is no number to run on; give 1 or more"),
        (("--seconds", "soon"), {}, "'soon' is no time; give seconds, such as 600"),
        (("--under", "valgrind"), {}, "invalid choice: 'valgrind'"),
        (("--seconds", "0.01"), {}, "not even collected in 0.01 s"),
        ((), {}, "no test that is marked gpu"),
        (("..", "../.."), {}, "../.. is outside"),
        (("test_missing.py",), {}, "cannot be collected: ERROR: file or directory not found"),
    ],
)
def test_where_nothing_can_be_run(
    cases: Path, notes: Path, check: Check, arguments: tuple[str, ...], more: dict[str, str], message: str
) -> None:
    (cases / "test_plain.py").write_text("def test_it():\n    pass\n")
    code, out, said = check(*arguments, **more)
    assert (code, out) == (2, "")
    assert message in said
    assert not (notes / "out").exists()


@pytest.mark.parametrize("missing", ["nvidia-smi", "compute-sanitizer"])
def test_where_a_program_is_missing(cases: Path, notes: Path, check: Check, missing: str) -> None:
    (notes / "commands" / missing).unlink()
    code, out, said = check(tool="synccheck", PATH=str(notes / "commands"))
    assert (code, out) == (2, "")
    assert said.startswith(f"check_gpu: no {missing} on the PATH")


def test_a_file_that_cannot_be_imported(cases: Path, notes: Path, check: Check) -> None:
    (cases / "test_broken.py").write_text("import no_such_module\n")
    code, _, said = check()
    assert code == 2
    assert "cannot be collected: E   ModuleNotFoundError: No module named 'no_such_module'" in said
