"""What becomes of the rows that layers leave, and where inputs have gone: the kernels emulated."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_emulation import CALL, address, emulated_kernel
from strategies import seeds

from sparsenn.backends.chains import RowMap, RowsLeft
from sparsenn.backends.cuda.sparse import rows as rows_module
from sparsenn.backends.cuda.sparse.resident.chain import _STAGE, CALL_BYTES

NUMBERS = pytest.mark.parametrize(("kind", "name"), [(np.float32, "float"), (np.float16, "half_bits")])


def aligned(count, kind):
    """An array at a multiple of 16 bytes, and 4 numbers more behind it, none of which is a number."""
    memory = np.full(count + 20, np.nan, kind)
    begin = -address(memory) % 16 // memory.itemsize
    return memory[begin : begin + count + 4]


@NUMBERS
@settings(max_examples=40, deadline=None)
@given(
    seed=seeds,
    rows=st.integers(1, 50),
    width=st.integers(1, 40),
    outputs=st.integers(1, 90),
    owned=st.booleans(),
    expanded=st.booleans(),
)
def test_every_element_is_written_once(kind, name, seed, rows, width, outputs, owned, expanded):
    rng = np.random.default_rng(seed)
    outputs = outputs if expanded else width
    left = rng.normal(size=(rows if not owned else rng.integers(1, 9), width)).astype(kind)
    owner = rng.integers(-1, len(left), rows).astype(np.int32)
    columns = rng.integers(0, width, outputs).astype(np.int32)
    target = aligned(rows * outputs, kind)
    arguments = left, np.int32(width), owner if owned else None, columns if expanded else None
    kernel = emulated_kernel("rows/spread.cu", "spread", NUMBER=name)
    kernel.launch(2, 64, *arguments, np.int64(rows), np.int64(outputs), target, seed=seed % 1000)
    right = np.where(owner[:, None] < 0, kind(0), left[owner]) if owned else left[:rows]
    right = right[:, columns] if expanded else right
    assert np.array_equal(target[: right.size].reshape(right.shape), right)
    assert np.isnan(target[right.size :]).all()


@NUMBERS
@settings(max_examples=40, deadline=None)
@given(seed=seeds, rows=st.integers(1, 50), width=st.integers(1, 300), owned=st.booleans())
def test_a_row_is_active_where_it_has_a_number_that_is_not_zero(kind, name, seed, rows, width, owned):
    rng = np.random.default_rng(seed)
    left = np.zeros((rows, width), kind)
    some = rng.random(rows) < 0.5
    left[some, rng.integers(0, width, rows)[some]] = rng.choice(np.array([6e-8, -2.0, np.nan], kind), some.sum())
    left[~some] *= -1  # negative zeros
    owner = rng.integers(-1, rows, rows).astype(np.int32)
    active = np.full(rows, 7, np.uint8)
    kernel = emulated_kernel("rows/spread.cu", "active_rows", NUMBER=name)
    kernel.launch(2, 64, left, np.int32(width), owner if owned else None, np.int32(rows), active, seed=seed % 1000)
    assert np.array_equal(active, np.where(owner < 0, False, some[owner]) if owned else some)


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 5000), st.integers(1, 3))
def test_owned_rows_are_bits_and_the_last_one_is_known(seed, rows, blocks):
    owner = np.random.default_rng(seed).integers(-1, 50, rows).astype(np.int32)
    words = -(-rows // 32)
    copy, found = np.zeros(rows, np.int32), np.full(words + blocks, 7, np.uint32)
    kernel = emulated_kernel("rows/spread.cu", "owned_rows")
    kernel.launch(blocks, 64, owner, np.int32(rows), copy, found, seed=seed % 1000)
    assert np.array_equal(copy, owner)
    assert found[words:].max() == owner.max() + 1
    bits = np.unpackbits(found[:words].view(np.uint8), bitorder="little")
    assert np.array_equal(np.flatnonzero(bits), np.flatnonzero(owner >= 0))
    listed = np.full(2 + rows, 7, np.int32)
    kernel = emulated_kernel("rows/spread.cu", "list_owned")
    kernel.launch(1, 64, found, np.int32(words), np.int32(blocks), listed, seed=seed % 1000)
    living = np.flatnonzero(owner >= 0)
    assert listed[:2].tolist() == [living.size, owner.max() + 1]
    assert np.array_equal(listed[2 : 2 + living.size], living)


def test_a_run_is_told_what_it_is_given():
    assert CALL.itemsize == CALL_BYTES
    call, stages, arrays = np.zeros(1, CALL), np.zeros(1, _STAGE), [np.zeros(3, np.int64) for _ in range(5)]
    kernel = emulated_kernel("sparse/begin_run.cu", "begin_run")
    weights, tallies = np.zeros(1000, np.uint8), np.arange(100, dtype=np.uint64)
    sizes = np.int64(weights.size), tallies, np.int32(99)
    kernel.launch(2, 32, call, stages, np.int32(11), *arrays, weights, *sizes, None, np.int32(0))
    assert tallies.tolist() == [0] * 99 + [99]
    assert call[0].tolist() == (11, 0, *map(address, arrays[:3]))
    assert (stages["rows_in"][0], stages["weights_in"][0]) == tuple(map(address, arrays[3:]))
    nothing = (None, np.int64(0), None, np.int32(0))
    kernel.launch(1, 32, call, stages, np.int32(12), None, None, None, None, None, *nothing, None, np.int32(0))
    assert call[0].tolist() == (12, 0, 0, 0, 0)


@pytest.mark.parametrize("fault", [None, 0, 3, 5])
def test_rows_with_a_fault_are_none(fault):
    call, stages, found = np.zeros(1, CALL), np.zeros(1, _STAGE), np.zeros(6, np.uint64)
    if fault is not None:
        found[fault] = 7
    kernel = emulated_kernel("sparse/begin_run.cu", "begin_run")
    given = (np.int32(12), None, None, None, None, None, None, np.int64(0), None, np.int32(0), found, np.int32(6))
    kernel.launch(1, 32, call, stages, *given)
    assert call["rows"][0] == (12 if fault is None else 0)


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 60), st.integers(1, 4), st.booleans())
def test_inputs_are_followed_to_the_row_that_holds_them(seed, rows, count, listed):
    """A stage leaves some of its rows, in any order; some stages find equal ones; the last may only list them."""
    rng = np.random.default_rng(seed)
    stages, keep, expected, before = np.zeros(count, _STAGE), [], np.arange(rows), rows
    for number in range(count):
        places = rng.permutation(before)
        following = np.where(rng.random(before) < 0.2, -1, places).astype(np.int32)
        distinct = rng.random() < 0.5
        expected = np.where(expected < 0, -1, following[expected])
        stages[number]["next"] = address(following)
        keep.append(following)
        if distinct:
            members = rng.permutation(before)[: rng.integers(1, before + 1)].astype(np.int32)
            kept, index = rng.choice(members, before), np.full(before, -9, np.int32)
            kept[members] = members
            index[members] = np.arange(members.size)
            stages[number]["kept"], stages[number]["index"] = address(kept), address(index)
            stages[number]["list"] = address(members)
            expected = np.where(expected < 0, -1, kept[expected])
            keep += [kept, index, members]
            if number + 1 < count:
                expected = np.where(expected < 0, -1, index[expected])
            before = members.size
        elif listed and number + 1 == count:
            members = rng.permutation(before).astype(np.int32)
            stages[number]["list"] = address(members)
            expected = np.where(expected < 0, -1, members[expected])
            keep.append(members)
    call, owner = np.zeros(1, CALL), np.full(rows + 3, -5, np.int32)
    call["rows"] = rows
    kernel = emulated_kernel("sparse/equal_rows.cu", "follow_rows")
    kernel.launch(1, 64, stages, np.int32(count), call, owner)
    assert owner[:rows].tolist() == expected.tolist()
    assert (owner[rows:] == -5).all()


@pytest.mark.parametrize("owned", [True, False])
def test_what_is_left_on_the_host_is_brought_to_the_device(monkeypatch, owned):
    class Device(np.ndarray):
        """An array on the device."""

    monkeypatch.setattr(
        rows_module,
        "cupy",
        lambda: SimpleNamespace(asarray=lambda array, kind=None: array.astype(kind or array.dtype).view(Device)),
    )
    row_map = RowMap(np.zeros(4, np.int64) - 1 if owned else None)
    found = rows_module.on_device(RowsLeft(np.zeros((0, 3), np.float32), row_map))
    assert isinstance(found.features, Device)
    assert isinstance(found.row_map.rows, Device) == owned
