#!/usr/bin/env python3
"""Which module records each table, and what it needs; `tools/bench` lists them. Only the standard library is used."""

from __future__ import annotations

__all__ = ["RECORDERS"]

_GPU, _EITHER = "a GPU", "a GPU, or --device cpu"
_MNIST = "data: MNIST"
_OFFICIAL = f"{_EITHER}; data: the official 1024 × 120 network"

RECORDERS = {
    "choice": ("table_choice", _EITHER),
    "conv2d": ("table_ladders", _EITHER),
    "cpu-convolutions": ("table_cpu", "PyTorch and torchvision; OpenVINO is compared if installed"),
    "cpu-rows": ("table_cpu", "ONNX Runtime; OpenVINO is compared if installed"),
    "devices": ("table_devices", "GPUs of one host"),
    "few-rows": ("table_gpu", f"{_GPU}, PyTorch"),
    "gemm": ("table_ladders", _EITHER),
    "golden": ("table_cpu", "PyTorch"),
    "gpu-convolutions": ("table_gpu", f"{_GPU}, PyTorch and torchvision"),
    "mlp": ("table_ladders", _EITHER),
    "models": ("table_cpu", f"{_MNIST} and pruned networks"),
    "network": ("table_network", _MNIST),
    "session": ("table_session", f"{_EITHER}; {_MNIST}"),
    "sparse-layers": ("table_session", f"{_GPU}; {_MNIST}"),
    "sparsify": ("table_sparsify", "PyTorch"),
    "spmspm-ladder": ("table_ladders", _OFFICIAL),
    "spmspm-sweep": ("table_ladders", _OFFICIAL),
    "torchvision": ("table_cpu", "PyTorch and torchvision"),
    "training": ("table_training", f"{_EITHER}; {_MNIST} and abalone"),
}
"""Module and needs by the name of the table."""

if __name__ == "__main__":
    print("usage: tools/bench TABLE [OPTION ...]; tools/bench TABLE --help has the options\n")
    for name, (_, needs) in RECORDERS.items():
        print(f"  {name:16} {needs}")
