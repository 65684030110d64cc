from __future__ import annotations

from pathlib import Path

import pytest
import record_input_sizes
from results_file import read_results


@pytest.mark.parametrize(("found", "code"), [(6_374_505, 0), (6_374_504, 1)])
def test_what_was_counted_is_recorded_and_a_wrong_count_fails(
    found: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(neurons: int, mnist: Path) -> dict[str, object]:
        official = 6_374_505
        row = {"neurons": neurons, "non_zeros": found, "official": official, "equal": found == official}
        return row | {"seconds": 1.0, "peak_gb": 0.5}

    monkeypatch.setattr(record_input_sizes, "measured_apart", measured)
    monkeypatch.setattr(
        record_input_sizes, "results_path", lambda name, folder=None: tmp_path / (folder or "this") / f"{name}.json"
    )
    assert record_input_sizes.main(["mnist", "--neurons", "1024", "--machine", "other"]) == code
    result = read_results(tmp_path / "other" / "input_sizes.json")
    assert result.rows[0]["non_zeros"] == found
    assert result.cells()[0][:2] == ["1,024", f"{found:,}"]
