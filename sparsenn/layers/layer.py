"""Base of all layers: the questions that an engine asks of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Any


class BaseLayer(ABC):
    """A layer: it makes Y' from Y, whose first dimension is the rows or images."""

    @property
    @abstractmethod
    def family(self) -> type[Any]:
        """The kind of layers that consecutive ones have to share to be run together."""

    @property
    def edges(self) -> int:
        """Stored weights; 0 unless the layer has any."""
        return 0

    @property
    def parameters(self) -> int:
        """Weights and biases; 0 unless the layer has any."""
        return 0

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take; 0 unless the layer has any."""
        return 0

    @property
    @abstractmethod
    def keeps_zero_rows(self) -> bool:
        """Whether a row or an image of zeros gives zeros only."""

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what the layer gives.

        Parameters
        ----------
        input_shape : tuple of int
            The shape of Y: (rows, ...) or (images, channels, height, width).

        Returns
        -------
        tuple of int
            The same of Y'.

        Raises
        ------
        ShapeError
            The layer does not take such a Y.
        """
        return self._output_shape(input_shape)

    @abstractmethod
    def _output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return what `output_shape` does."""

    def multiply_adds(self, input_shape: tuple[int, ...]) -> int:
        """Return how many multiplications and additions a Y takes, those with zeros and padding included.

        Parameters
        ----------
        input_shape : tuple of int
            The shape of Y.

        Returns
        -------
        int
            The multiply-adds; 0 unless the layer has weights.

        Raises
        ------
        ShapeError
            As `output_shape`.
        """
        rows, _, *pixels = self.output_shape(input_shape)
        return rows * prod(pixels) * self._uses * self.edges

    @property
    def _uses(self) -> int:
        """How often a row, or a pixel that the layer gives, meets each weight."""
        return 1
