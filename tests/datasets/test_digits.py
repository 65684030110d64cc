from __future__ import annotations

import numpy as np
import pytest

from sparsenn.backends import oracle as reference
from sparsenn.datasets import digit_inputs, radixnet
from sparsenn.errors import ResourceError, UsageError
from sparsenn.formats import CSR
from sparsenn.runtime import memory


def pictures(inputs: CSR) -> np.ndarray:
    """(images, y, x) of zeros and ones."""
    side = int(inputs.shape[1] ** 0.5)
    return inputs.to_scipy().toarray().reshape(-1, side, side).transpose(0, 2, 1)


@pytest.mark.parametrize("neurons", [1024, 4096])
def test_density_is_that_of_the_challenge(neurons: int) -> None:
    inputs = digit_inputs(neurons, 2000).validate()
    assert inputs.iso
    assert inputs.values.tolist() == [1.0]
    assert 0.095 < inputs.density < 0.11
    per_image = np.diff(inputs.indptr) / neurons
    assert per_image.min() > 0.01
    assert 0.2 < per_image.max() < 0.5


def test_images_are_centred_upright_and_inside_the_frame() -> None:
    images = pictures(digit_inputs(1024, 500))
    assert images[:, [0, -1]].mean() < 0.01
    assert images[:, :, [0, -1]].mean() < 0.01
    heights = images.any(axis=2).sum(axis=1)
    widths = images.any(axis=1).sum(axis=1)
    assert 18 < heights.mean() < 26
    assert 0.4 * heights.mean() < widths.mean() < 0.9 * heights.mean()


def test_each_image_depends_on_seed_and_place_alone() -> None:
    few, many = digit_inputs(400, 7, seed=1), digit_inputs(400, 50, seed=1)
    np.testing.assert_array_equal(few.indices, many.slice_groups(0, 7).indices)
    assert not np.array_equal(few.indices, digit_inputs(400, 7, seed=2).indices)
    assert len({image.tobytes() for image in pictures(many)}) == 50


def test_some_images_survive_the_challenges_network_and_most_do_not() -> None:
    inputs = digit_inputs(1024, 3000)
    survivors = reference.categories(radixnet(1024, 120, bias=-0.3), inputs).size / inputs.shape[0]
    assert 0.005 < survivors < 0.1


@pytest.mark.parametrize(("neurons", "images"), [(1000, 3), (0, 3), (257 * 257, 3), (1024, 0), (1024, -1)])
def test_what_cannot_be_drawn_is_refused(neurons: int, images: int) -> None:
    with pytest.raises(UsageError):
        digit_inputs(neurons, images)


def test_images_beyond_memory_are_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 10**10)
    with pytest.raises(ResourceError, match=r"drawing 2,000,000,000 images of 1,024 pixels needs [\d,.]+ GB of memory"):
        digit_inputs(1024, 2 * 10**9)
