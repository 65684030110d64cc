"""How the steps of an epoch follow each other and how they are cut, and what the trainer needs: on any machine."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from training_problems import problem

from sparsenn.backends import automatic
from sparsenn.backends.cuda.training.graph import GRAPH, NARROW, SHARED_BYTES, backward_steps, lanes_of, tile_size
from sparsenn.backends.machine import MACHINES
from sparsenn.layers import Identity, Linear


@given(st.integers(1, 40), st.booleans())
def test_every_layer_is_updated_once_and_only_after_its_weights_were_read(count, narrow):
    steps = list(backward_steps(count, narrow))
    read = {count - 1} if narrow else set()  # a narrow last layer has been gone through
    updated = []
    for step in steps:
        for number in step.updates:
            assert number in read or number == 0
            assert number != step.through
        updated += step.updates
        if step.through is not None:
            assert step.through not in read
            read.add(step.through)
        assert len(step.updates) <= 2
    assert sorted(updated) == list(range(count))
    assert read - {0} == set(range(1, count))


@given(st.integers(1, 40), st.booleans())
def test_gradients_arrive_before_they_are_used(count, narrow):
    arrived = {count - 1} | ({max(0, count - 2)} if narrow else set())
    for step in backward_steps(count, narrow):
        assert arrived.issuperset(step.updates)
        if step.through is not None:
            assert step.through in arrived
            arrived.add(step.through - 1)


@given(st.integers(1, 200))
def test_lanes_hold_the_outputs(outputs):
    lanes = lanes_of(outputs)
    if outputs > NARROW:
        assert lanes == 0
    else:
        assert lanes in (1, 2, 4, 8, 16, 32)
        assert lanes // 2 < outputs <= lanes


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 200))
def test_tiles_are_large_where_blocks_suffice(rows, columns, blocks):
    size = tile_size([(1, 1), (rows, columns)], (16, 32, 64), blocks)
    count = {side: -(-rows // side) * -(-columns // side) for side in (16, 32, 64)}
    assert size == 16 or count[size] >= blocks
    assert all(count[side] < blocks for side in (16, 32, 64) if side > size)


def test_every_machine_takes_every_problem():
    layer = Linear(np.eye(1, dtype=np.float32), np.zeros(1), Identity())
    deep = replace(problem((1, 1)), layers=(layer,) * 5000)
    for machine in MACHINES.values():
        assert GRAPH.why_not(machine, problem()) is None
        assert GRAPH.why_not(machine, deep) is None
    assert automatic("train", "cuda") == (GRAPH,)


def test_a_machine_with_little_shared_memory_is_refused():
    for machine in MACHINES.values():
        assert GRAPH.why_not(replace(machine, block_bytes=SHARED_BYTES), problem()) is None
        reason = GRAPH.why_not(replace(machine, block_bytes=64 << 10), problem())
        assert reason == "blocks have 65,536 bytes of shared memory here, this kernel takes 75,776; use --kernel tiled"
