"""`sparsenn doctor`, also where next to nothing works."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Run

import sparsenn
from sparsenn.backends.cuda.runtime import availability
from sparsenn.cli import diagnosis
from sparsenn.cli.diagnosis import Finding, diagnose


def found(findings: list[Finding], section: str, name: str) -> Finding:
    (finding,) = (each for each in findings if (each.section, each.name) == (section, name))
    return finding


def test_everything_is_told(run: Run, tmp_path: Path) -> None:
    done = run("doctor", "--json", tmp_path / "doctor.json")
    record = json.loads((tmp_path / "doctor.json").read_text())
    sections = {finding["section"] for finding in record["findings"]}
    assert sections == {"program", "libraries", "optional", "processor", "memory", "gpu", "caches", "kernels"}
    values = {(finding["section"], finding["name"]): finding["value"] for finding in record["findings"]}
    assert values["program", "sparsenn"] == sparsenn.__version__
    assert values["processor", "cores"] >= 1
    assert values["memory", "system"] > 0
    assert values["caches", "datasets"]["folder"] == str(tmp_path / "cache" / "datasets")
    assert values["caches", "datasets"]["writable"]
    assert values["kernels", "compiled"]["all"] > 50
    assert values["kernels", "kernels"] > 50
    assert "numpy" in done.stdout


def test_json_on_stdout_is_all_of_it(run: Run) -> None:
    done = run("doctor", "--json", "-")
    assert set(json.loads(done.stdout)) == {"healthy", "findings"}


def test_probes_that_fail_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("no\nway")

    for name in ("_program", "_cores", "_instructions", "_memory", "_driver", "_cupy", "_gpu", "_kernels"):
        monkeypatch.setattr(diagnosis, name, fails)
    findings = [finding for finding in diagnose() if finding.section not in ("libraries", "optional", "caches")]
    assert len(findings) == 8
    assert {(finding.message, finding.failed) for finding in findings} == {("cannot be found out: no way", True)}


def test_without_a_driver_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "_driver", lambda: None)
    monkeypatch.setattr(availability, "distributions", list)
    findings = diagnose()
    assert found(findings, "gpu", "driver").message == "none: everything runs on the CPU"
    assert found(findings, "gpu", "CuPy").remedy is None
    assert not any(finding.failed for finding in findings if finding.section == "gpu")


class Driver:
    """CUDA's driver of some version, with one GPU."""

    def __init__(self, version: int) -> None:
        self.version = version

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            if name == "cuDriverGetVersion":
                arguments[0]._obj.value = self.version  # type: ignore[attr-defined]
            if name == "cuDeviceGetCount":
                arguments[0]._obj.value = 1  # type: ignore[attr-defined]
            if name == "cuDeviceGetName":
                arguments[0].value = b"NVIDIA Abacus"  # type: ignore[attr-defined]
            return 0

        call.__name__ = name
        return call


@pytest.mark.parametrize(
    ("version", "told", "package"), [(12040, "12.4", "cupy-cuda12x"), (13010, "13.1", "cupy-cuda13x")]
)
def test_a_driver_without_cupy_names_the_package(
    monkeypatch: pytest.MonkeyPatch, version: int, told: str, package: str
) -> None:
    monkeypatch.setattr(availability, "_driver", lambda: Driver(version))
    monkeypatch.setattr(availability, "distributions", list)
    findings = diagnose()
    assert found(findings, "gpu", "driver").value == told
    assert found(findings, "gpu", "GPUs").value == ["NVIDIA Abacus"]
    assert found(findings, "gpu", "CuPy").remedy == f"pip install '{package}[ctk]', to use the GPU"
