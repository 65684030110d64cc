"""Makes the models beside this file: run it where Keras is installed, `KERAS_BACKEND=torch python make.py`.

Each is saved as `.keras`, deflated, and as `.h5`, gzipped; `expected.npz` holds inputs, and what Keras gives for them.
"""

from __future__ import annotations

import gzip
import tempfile
import zipfile
from pathlib import Path

import keras
import numpy as np
from keras import Input, Model, Sequential, layers

HERE = Path(__file__).parent


def functional() -> Model:
    inputs = Input((6,))
    inner = layers.Dense(3, activation="relu")(layers.Rescaling(2.0, 1.0)(inputs))
    return Model(inputs, layers.Activation("sigmoid")(inner))


MODELS = {
    "rows": Sequential(
        [
            Input((6,)),
            layers.Normalization(),
            Sequential([layers.Dense(4), layers.LeakyReLU(negative_slope=0.2), layers.PReLU()]),
            layers.Dense(5, activation="relu6"),
            layers.BatchNormalization(),
            layers.ReLU(max_value=3.0),
            layers.Dropout(0.5),
            layers.Dense(4, activation=layers.LeakyReLU(negative_slope=0.1), use_bias=False),
            layers.Dense(2),
            layers.Softmax(),
        ]
    ),
    "images": Sequential(
        [
            Input((12, 11, 2)),
            layers.BatchNormalization(),
            layers.Conv2D(3, 3, padding="same", strides=2, activation="relu"),
            layers.MaxPooling2D(2),
            layers.DepthwiseConv2D(2, depth_multiplier=2, padding="same"),
            layers.BatchNormalization(scale=False),
            layers.SeparableConv2D(4, 2, padding="same", activation="tanh"),
            layers.Conv2D(4, 2, groups=2),
            layers.Flatten(),
            layers.BatchNormalization(center=False),
            layers.Dense(5, activation="relu"),
            layers.Dense(4, activation="softmax", name="top"),
        ]
    ),
    "sequences": Sequential(
        [
            Input((20, 3)),
            layers.Conv1D(4, 3, padding="causal", dilation_rate=2),
            layers.PReLU(shared_axes=[1]),
            layers.AveragePooling1D(2),
            layers.Conv1D(4, 3, padding="same"),
            layers.GlobalMaxPooling1D(),
        ]
    ),
    "reshaped": Sequential(
        [
            Input((6, 6)),
            layers.Reshape((6, 6, 1)),
            layers.Conv2D(2, 5, padding="same", dilation_rate=1),
            layers.MaxPooling2D(3, 1, padding="same"),
            layers.Flatten(),
        ]
    ),
    "functional": functional(),
}


def main() -> None:
    random, expected = np.random.default_rng(1), {}
    for name, model in MODELS.items():
        for weight in model.weights:
            values = random.uniform(-1, 1, weight.shape)
            if "count" not in weight.path:
                weight.assign(np.abs(values) + 0.3 if "variance" in weight.path else values)
        rows = random.normal(size=(5, *model.input_shape[1:])).astype(np.float32)
        expected[f"{name} inputs"], expected[f"{name} outputs"] = rows, np.asarray(model.predict(rows, verbose=0))
        with tempfile.TemporaryDirectory() as folder:
            archive, legacy = Path(folder) / "model.keras", Path(folder) / "model.h5"
            model.save(archive)
            model.save(legacy)
            (HERE / f"{name}.h5.gz").write_bytes(gzip.compress(legacy.read_bytes(), mtime=0))
            with (
                zipfile.ZipFile(archive) as given,
                zipfile.ZipFile(HERE / f"{name}.keras", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as made,
            ):
                for member in given.namelist():
                    made.writestr(member, given.read(member))
    np.savez_compressed(HERE / "expected.npz", **expected)
    print(f"made with Keras {keras.__version__}")


if __name__ == "__main__":
    main()
