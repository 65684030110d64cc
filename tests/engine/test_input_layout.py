"""Inputs come as the model held them that a network was made of: in its shape, and with its order of axes."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from sparsenn import InputLayout, Network, Session, infer
from sparsenn.engine import session as engine_session
from sparsenn.errors import MatrixError, ShapeError, UsageError
from sparsenn.layers import Conv2d, Flatten, Identity, Linear

DEVICES = pytest.mark.parametrize("device", ["cpu", "reference", pytest.param("cuda", marks=pytest.mark.gpu)])


@pytest.fixture
def rows(rng: np.random.Generator) -> np.ndarray:
    """With the channels first."""
    return rng.random((5, 3, 4, 2)).astype(np.float32)


def of_images(shape: tuple[int, int, int], layout: InputLayout | None) -> Network:
    weights = np.arange(2.0 * shape[0]).reshape(2, shape[0], 1, 1)
    return Network((Conv2d(weights, activation=Identity()), Flatten()), shape, input_layout=layout)


@DEVICES
def test_channels_may_be_last(rows: np.ndarray, device: str) -> None:
    last = np.moveaxis(rows, 1, -1)
    with Session(of_images((3, 4, 2), InputLayout((4, 2, 3), channels_last=True)), device=device) as session:
        expected = session(rows.reshape(5, 24))
        for given in (last, np.ascontiguousarray(last), rows, [last], last.tolist(), last.astype(np.float64)):
            np.testing.assert_array_equal(session(given), expected)
            np.testing.assert_array_equal(session.run(given).dense, expected)
        for given in (last[0], rows[0], rows[0].ravel(), [last[0]], [rows[0].ravel()]):
            np.testing.assert_array_equal(session(given), session(rows[:1]))
        assert session(last[:0]).shape == expected[:0].shape
        with pytest.raises(MatrixError, match=r"\(rows, 24\) or \(rows, 4, 2, 3\) or \(rows, 3, 4, 2\)$"):
            session(rows.reshape(5, 2, 3, 4))
        with pytest.raises(ShapeError, match=r"23 columns.* \(rows, 24\)"):
            session(np.zeros((5, 23)))


def test_images_that_lie_as_rows_do_go_straight_to_their_executable(rows: np.ndarray, monkeypatch: Any) -> None:
    last = np.ascontiguousarray(np.moveaxis(rows, 1, -1))
    with Session(of_images((3, 4, 2), InputLayout((4, 2, 3), channels_last=True)), device="cpu") as session:
        given = rows, rows[0], rows.reshape(5, 24), last
        expected = [session(each) for each in given * 2][-4:]
        asked: list[Any] = []
        real = engine_session.compute_outputs
        monkeypatch.setattr(engine_session, "compute_outputs", lambda *how: asked.append(how[1].source) or real(*how))
        for each, found in zip(given, expected, strict=True):
            np.testing.assert_array_equal(session(each), found)
        assert [each is last for each in asked] == [True]


def test_where_both_orders_fit_it_is_that_of_the_model(rng: np.random.Generator) -> None:
    cubes = rng.random((4, 3, 3, 3)).astype(np.float32)
    last = InputLayout((3, 3, 3), channels_last=True)
    expected = infer(of_images((3, 3, 3), None), cubes, device="cpu").dense
    found = infer(of_images((3, 3, 3), last), np.moveaxis(cubes, 1, -1), device="cpu").dense
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 4, 6, 1), (5, 1, 4, 6), (5, 24), (1, 5, 1, 4, 6)])
def test_axes_of_size_one_do_not_matter(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    images = rng.random((5, 4, 6)).astype(np.float32)
    for layout in (None, InputLayout((4, 6, 1), channels_last=True)):
        session = Session(of_images((1, 4, 6), layout), device="cpu")
        if len(shape) == 5:
            with pytest.raises(MatrixError, match="the inputs have the shape"):
                session(images.reshape(shape))
        else:
            np.testing.assert_array_equal(session(images.reshape(shape)), session(images.reshape(5, 24)))


def test_rows_of_features_keep_the_shape_that_they_had(rows: np.ndarray) -> None:
    linear = Linear(np.arange(48.0).reshape(24, 2), activation=Identity())
    flat = rows.reshape(5, 24)
    expected = Session(Network((linear,)), device="cpu")(flat)
    for layout in (InputLayout((3, 4, 2)), InputLayout(flattens=True)):
        session = Session(Network((linear,), input_layout=layout), device="cpu")
        for given in (flat, rows, [rows]):
            np.testing.assert_array_equal(session(given), expected)
    with pytest.raises(MatrixError, match=r"shape \(5, 3, 4, 2\)"):
        Session(Network((linear,)), device="cpu")(rows)


def test_a_list_of_one_input_is_one_row(rows: np.ndarray) -> None:
    session = Session(of_images((3, 4, 2), None), device="cpu")
    for given in ([rows[0]], [rows[0].ravel()], [rows[:1]]):
        np.testing.assert_array_equal(session(given), session(rows[:1]))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda network: pickle.loads(pickle.dumps(network))])
def test_networks_made_of_it_keep_the_layout(again: Any) -> None:
    layout = InputLayout((4, 2, 3), channels_last=True, names=tuple(f"x{number}" for number in range(24)))
    network = of_images((3, 4, 2), layout)
    for made in (again(network), network.prefix(1), network.with_bias(0.5), network.pruned(0.5)):
        assert made.input_layout == layout


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (lambda: of_images((3, 4, 2), InputLayout((4, 2, 4))), ShapeError, "does not hold the 24 numbers of a row"),
        (lambda: of_images((3, 4, 2), InputLayout(names=("a",))), ShapeError, "1 names for the 24 numbers"),
        (lambda: InputLayout((4, 0)), ShapeError, "integers of at least 1"),
        (lambda: InputLayout(()), ShapeError, "integers of at least 1"),
        (lambda: InputLayout((1.5,)), ShapeError, "integers of at least 1"),
        (lambda: InputLayout(channels_last=1), UsageError, "True or False"),
        (lambda: InputLayout(names=("a", "a")), UsageError, "different texts"),
        (lambda: InputLayout(names=("a", 2)), UsageError, "different texts"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(made: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        made()


@pytest.mark.gpu
def test_arrays_on_a_gpu_stay_there(rows: np.ndarray, cupy: Any) -> None:
    session = Session(of_images((3, 4, 2), InputLayout((4, 2, 3), channels_last=True)), device="cuda")
    last = cupy.asarray(np.moveaxis(rows, 1, -1))
    for given in (last, [last]):
        found = session(given)
        assert isinstance(found, cupy.ndarray)
        np.testing.assert_array_equal(found.get(), session(rows))
