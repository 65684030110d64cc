"""What the times of networks of images are measured with: the host, a GPU through CuPy, and the network in PyTorch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from sparsenn.errors import UsageError
from sparsenn.layers import AvgPool2d, Conv2d, Flatten, Linear, MaxPool2d, ReLU, Softmax
from sparsenn.network import Network

try:
    import torch
except ImportError:
    torch = None

__all__ = ["Gpu", "Host", "Peer", "torch"]

WARM_UP = 3
"""Calls before those that are timed."""

Call = Callable[[], Any]


class Host:
    """The CPU: arrays are NumPy's, times the wall clock's."""

    graphs = False

    def place_rows(self, rows: np.ndarray, precision: str) -> Any:
        return rows

    def fetch(self, outputs: Any) -> np.ndarray:
        return np.asarray(outputs)

    def seconds(self, call: Call, runs: int) -> list[float]:
        """Return the seconds of calls, after some that are not counted."""
        found = []
        for number in range(WARM_UP + runs):
            start = time.perf_counter()
            call()
            if number >= WARM_UP:
                found.append(time.perf_counter() - start)
        return found

    def captured_seconds(self, call: Call, runs: int) -> list[float] | None:
        return None


class Gpu:
    """A GPU: arrays are CuPy's, times those between two events."""

    graphs = True

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy

    def place_rows(self, rows: np.ndarray, precision: str) -> Any:
        """Bring rows to the device, in half precision where that is what is multiplied."""
        return self.cupy.asarray(rows, np.float16 if precision == "float16" else np.float32)

    def fetch(self, outputs: Any) -> np.ndarray:
        return np.asarray(self.cupy.asnumpy(outputs))

    def seconds(self, call: Call, runs: int) -> list[float]:
        """Return the seconds between events around each call, after some calls that are not counted."""
        stream = self.cupy.cuda.get_current_stream()
        for _ in range(WARM_UP):
            call()
        return self._between_events(call, stream, runs)

    def captured_seconds(self, call: Call, runs: int) -> list[float] | None:
        """Return the seconds of what a call launches, captured in one graph; None where that cannot be captured."""
        stream = self.cupy.cuda.Stream(non_blocking=True)
        with stream:
            for _ in range(WARM_UP):
                call()
            stream.synchronize()
            stream.begin_capture()
            try:
                kept = call()  # lives as long as the graph that writes it
                graph = stream.end_capture()
            except RuntimeError as error:
                print(f"not captured: {error}", file=sys.stderr)
                with suppress(RuntimeError):
                    stream.end_capture()  # what was captured is of no use, but the stream must not go on capturing
                return None
            for _ in range(WARM_UP):
                graph.launch(stream)
            found = self._between_events(lambda: graph.launch(stream), stream, runs)
            del kept
        return found

    def _between_events(self, call: Call, stream: Any, runs: int) -> list[float]:
        events = [(self.cupy.cuda.Event(), self.cupy.cuda.Event()) for _ in range(runs)]
        for start, stop in events:
            start.record(stream)
            call()
            stop.record(stream)
        stream.synchronize()
        return [self.cupy.cuda.get_elapsed_time(*pair) / 1e3 for pair in events]


class Peer:
    """The same network in PyTorch, channels first.

    Raises
    ------
    UsageError
        A layer or an activation is none that this script knows in PyTorch.
    """

    def __init__(self, network: Network, device: str, precision: str) -> None:
        allowed = precision == "tf32"
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
        self.device, self.kind = device, torch.float16 if precision == "float16" else torch.float32
        self.layers = [self._layer(layer) for layer in network]

    def tensor(self, values: np.ndarray) -> Any:
        """Bring numbers to the device, in the precision's type."""
        return torch.tensor(np.ascontiguousarray(values), dtype=self.kind, device=self.device)

    def transposed(self, matrix: np.ndarray) -> Any:
        """Bring a matrix to the device and transpose it there: NumPy takes long to transpose a large one."""
        return self.tensor(matrix).t().contiguous()

    def _layer(self, layer: Any) -> Callable[[Any], Any]:
        functional = torch.nn.functional
        if isinstance(layer, Conv2d):
            weights, bias = self.tensor(layer.weights), self.tensor(layer.bias_vector())
            _, stride, padding, dilation = layer.sliding_window
            finish = self._activation(layer)
            return lambda x: finish(functional.conv2d(x, weights, bias, stride, padding, dilation, layer.groups))
        if isinstance(layer, Linear):
            weights, bias = self.transposed(layer.weights), self.tensor(layer.bias_vector())
            finish = self._activation(layer)
            return lambda x: finish(functional.linear(x, weights, bias))
        if isinstance(layer, MaxPool2d):
            return lambda x: functional.max_pool2d(x, *layer.sliding_window[:3])
        if isinstance(layer, AvgPool2d):
            return lambda x: functional.avg_pool2d(x, *layer.sliding_window[:3])
        if isinstance(layer, Flatten):
            return lambda x: x.flatten(1)
        if isinstance(layer, Softmax):
            return lambda x: torch.softmax(x.flatten(1), 1).view_as(x)
        raise UsageError(f"PyTorch's {type(layer).__name__} is not known here")

    @staticmethod
    def _activation(layer: Any) -> Callable[[Any], Any]:
        if isinstance(layer.activation, ReLU) and layer.activation.clip is None:
            return torch.relu_
        if layer.activation.name == "identity":
            return lambda x: x
        raise UsageError(f"PyTorch's {layer.activation} is not known here")

    def __call__(self, images: Any) -> Any:
        with torch.no_grad():
            for layer in self.layers:
                images = layer(images)
        return images

    def seconds(self, call: Call, runs: int) -> list[float]:
        """Return the seconds of calls, as `Host` or `Gpu` times them."""
        if self.device == "cpu":
            return Host().seconds(call, runs)
        for _ in range(WARM_UP):
            call()
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
        for start, stop in events:
            start.record()
            call()
            stop.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) / 1e3 for start, stop in events]

    def captured(self, call: Call) -> Call | None:
        """Return what launches a call's work as one graph; None where PyTorch refuses, or there is no GPU."""
        if self.device == "cpu":
            return None
        try:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    call()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = call()
        except RuntimeError as error:
            print(f"PyTorch: not captured: {error}", file=sys.stderr)
            return None

        def launch() -> Any:
            graph.replay()
            return kept

        return launch
