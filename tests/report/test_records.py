"""Results as JSON: the promised keys, plain values, and nothing that JSON cannot say."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace

import pytest

from sparsenn.engine import LayerStatistics, Result, Seconds
from sparsenn.report import to_json, to_record


def test_keys_and_values_are_those_of_the_result(result: Result) -> None:
    record = json.loads(to_json(to_record(result, verified=True)), parse_constant=pytest.fail)
    assert record["categories"] == [int(category) + 1 for category in result.categories]
    assert (record["inputs"], record["neurons"], record["layers"], record["edges"]) == (40, 64, 8, result.edges)
    assert record["verified"] is True
    assert record["plan"] == json.loads(json.dumps(result.plan.to_dict()))
    assert record["device"] == result.plan.device
    assert record["performed_edges"] == sum(layer["performed_edges"] for layer in record["per_layer"])
    assert record["edges_per_second"] == pytest.approx(result.edges_per_second)


def test_the_rate_counts_everything_but_reading(result: Result) -> None:
    seconds = Seconds(read=100.0, plan=1.0, prepare=2.0, transfer=4.0, compile=8.0, compute=16.0)
    timed = replace(result, seconds=seconds)
    assert (seconds.inference, seconds.total) == (31.0, 131.0)
    assert timed.edges_per_second == result.inputs * result.edges / 31.0


def test_each_layer_has_all_statistics(result: Result) -> None:
    layers = to_record(result)["per_layer"]
    assert [layer["layer"] for layer in layers] == list(range(1, 9))
    assert all(list(layer) == [field.name for field in fields(LayerStatistics)] for layer in layers)


def test_what_json_cannot_say_is_null() -> None:
    assert json.loads(to_json({"rate": math.inf})) == {"rate": None}
