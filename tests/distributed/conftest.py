"""A cluster that tests share, and a problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from sparsenn.datasets import radixnet
from sparsenn.formats import CSR
from sparsenn.io import Dataset, write_dataset


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    """64 neurons, 6 layers and 600 rows, of which some end with a non-zero."""
    rows = random_array((600, 64), density=0.4, format="csr", dtype=np.float32, rng=np.random.default_rng(5))
    rows.data[:] = 1
    return Dataset("small", radixnet(64, 6), CSR.from_scipy(csr_array(rows)))


@pytest.fixture(scope="session")
def problem(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset's file."""
    path = tmp_path_factory.mktemp("problem") / "problem.h5"
    write_dataset(dataset, path)
    return path


@pytest.fixture(scope="session")
def client() -> Iterator[Any]:
    """The client of a cluster of two processes."""
    pytest.importorskip("distributed.client", reason="the extra dask is not installed")
    from sparsenn.distributed.cluster import local

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "find_spec", lambda name: None)  # addresses are the same with cryptography and without
        with local.local_cluster(2, device="cpu") as made:
            yield made
