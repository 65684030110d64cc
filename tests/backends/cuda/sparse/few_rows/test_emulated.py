"""The kernels for few rows, emulated on the host: outputs of small chains."""

import numpy as np
import pytest
from sparse_emulation import address, emulated_kernel
from sparse_layers import scattered_layers

from sparsenn import Network, infer
from sparsenn.backends.cuda.runtime.activation import activation_code
from sparsenn.backends.cuda.sparse.few_rows import chain
from sparsenn.backends.cuda.sparse.few_rows.half import BETWEEN, FLOATS, HALVES
from sparsenn.backends.cuda.sparse.few_rows.weights import pack_weights, slice_weights
from sparsenn.backends.cuda.sparse.stack import LayerNumbers
from sparsenn.layers import ReLU

WIDTHS = (41, 70, 33, 9)


@pytest.fixture
def network(rng):
    return Network(scattered_layers(rng, WIDTHS, 0.4, ReLU(4)))


def numbers_of(layer):
    return LayerNumbers(layer.weights, layer.bias_vector(), np.ones(layer.outputs, np.int64))


@pytest.mark.parametrize("rows", [1, 6])
def test_all_layers_in_one_launch_have_the_bits_of_the_cpu(network, rows, rng):
    group, warps = (4, 2) if rows > 1 else (1, 2)
    laid = [slice_weights(numbers_of(layer)) for layer in network]
    records = np.zeros(len(laid), chain._RECORD)
    for record, layer, each in zip(records, network, laid, strict=True):
        record["arrays"] = [address(array) for array in each]
        record["inputs"], record["outputs"], record["slices"] = layer.inputs, layer.outputs, each.slices
        record["activation"], record["clip"] = activation_code(layer, 1)
    groups, room = -(-rows // group), 72
    features = rng.normal(size=(rows, WIDTHS[0])).astype(np.float32)
    outputs = np.full((rows, WIDTHS[-1]), np.nan, np.float32)
    between, arrived = np.zeros(2 * groups * room * group, np.float32), np.zeros(groups, np.uint64)
    kernel = emulated_kernel("sparse/few_rows.cu", "few_rows", ROWS=group, WARPS=warps, DEPTH=4, CLUSTER=1)
    for _ in range(2):  # the counters go on
        kernel.launch(
            *(groups, 32 * warps, records.view(np.uint8), np.int32(len(laid)), features, outputs, np.int32(rows)),
            *(between, np.int32(room), arrived, np.int32(1)),
            reads=[array for each in laid for array in each],
        )
        assert np.array_equal(outputs, infer(network, features, device="cpu", kernel="panel").dense)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_launch_a_layer_in_half_precision(network, rows, kind, rng):
    group, threads = 8 if rows > 1 else 1, 512
    features = rng.normal(size=(rows, WIDTHS[0])).astype(kind)
    expected = infer(network, features.astype(np.float32), device="cpu").dense
    form, source = HALVES if kind == np.float16 else FLOATS, features
    kernel = emulated_kernel("sparse/few_rows_half.cu", "few_rows_half", ROWS=group, THREADS=threads)
    form_in = form
    for number, layer in enumerate(network):
        last, laid = number + 1 == len(network), pack_weights(numbers_of(layer))
        target = np.zeros((rows, layer.outputs), kind) if last else np.zeros((layer.outputs, group), np.float16)
        kernel.launch(
            *(2, threads, laid.words, laid.runs, np.int32(layer.inputs), np.int32(layer.outputs), source),
            *(np.int32(form_in), target, np.int32(form if last else BETWEEN), np.int32(rows)),
            *activation_code(layer, 1),
        )
        source, form_in = target, BETWEEN
    assert np.abs(source - expected).max() <= 1e-2 * np.abs(expected).max()
