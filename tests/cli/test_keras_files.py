"""An .h5 file of Keras is a model: it is described and run by the verbs that take one."""

from __future__ import annotations

import numpy as np
from keras_files import dense, write_legacy
from real_networks import RIGHT, images_and_labels, real_weights


def test_real_network(run, tmp_path, shared_data):
    images, labels = images_and_labels(shared_data, "lenet300-dns")
    arrays = list(real_weights(shared_data, "lenet300-dns").values())
    layers = [dense(arrays[at].T, arrays[at + 1], "relu" if at < 4 else "linear") for at in (0, 2, 4)]
    path = write_legacy(tmp_path / "model.h5", (784,), layers)
    np.save(tmp_path / "rows.npy", images)
    done = run("predict", path, tmp_path / "rows.npy", "--output", tmp_path / "out.npy", "--device", "cpu")
    assert done.exit_code == 0, done.stderr
    assert (np.load(tmp_path / "out.npy") == labels).sum() == RIGHT["lenet300-dns"]
    assert "784" in run("info", path).stdout


def test_what_no_layer_computes_is_one_line(run, tmp_path):
    path = write_legacy(tmp_path / "model.h5", (2,), [dense(np.ones((2, 3)), np.ones(3), "squareplus")])
    done = run("info", path)
    assert done.exit_code == 2
    assert "l1 (Dense): no layer of sparsenn has the activation 'squareplus'" in " ".join(done.stderr.split())
