"""Enlargement of images to the size that a model takes."""

from __future__ import annotations

import numpy as np

from sparsenn.errors import ShapeError
from sparsenn.formats import Array
from sparsenn.runtime.workers import chunks, map_threads

_IMAGES = 64  # images enlarged by a thread at a time


def resize_bilinear(images: Array, height: int, width: int) -> Array:
    """Enlarge images by bilinear interpolation; bytes become numbers from 0 to 1 first.

    Pixels are squares, of which the old and the new ones cover the same area: pixel k of n lies at (k + 1/2) / n.
    What lies outside of the outermost pixels' centres takes their values. So do PyTorch's `interpolate` with
    `align_corners=False` and most other libraries. It is done by `scipy.ndimage.zoom`.

    Parameters
    ----------
    images : array, shape (images, rows, columns) or (images, channels, rows, columns)
        Of uint8, which is divided by 255, or real numbers, which are taken as they are.
    height : int
        The new rows, no fewer than there are.
    width : int
        The new columns, likewise.

    Returns
    -------
    array, float32
        With the last two dimensions of the new size. Each image's bits depend on that image alone.

    Raises
    ------
    ShapeError
        The images do not have so many dimensions, are empty, or are larger than the new size.
    """
    if images.ndim not in (3, 4) or 0 in images.shape[1:]:
        raise ShapeError(f"images of shape {images.shape} cannot be enlarged; images with rows and columns are needed")
    rows, columns = images.shape[-2:]
    if height < rows or width < columns:
        raise ShapeError(f"images of {rows} × {columns} pixels cannot be enlarged to {height} × {width}")
    from scipy import ndimage

    pixels = images.reshape(-1, rows, columns)
    enlarged = np.empty((len(pixels), height, width), np.float32)

    def enlarge(span: tuple[int, int]) -> None:
        part = pixels[slice(*span)].astype(np.float32)
        if images.dtype == np.uint8:
            part /= np.float32(255)
        if (height, width) != (rows, columns):
            zoom = (1, height / rows, width / columns)
            ndimage.zoom(part, zoom, enlarged[slice(*span)], order=1, mode="nearest", grid_mode=True)
        else:
            enlarged[slice(*span)] = part

    map_threads(enlarge, chunks(len(pixels), _IMAGES))
    return enlarged.reshape(*images.shape[:-2], height, width)
