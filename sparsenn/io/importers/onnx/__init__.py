"""Networks from ONNX files and into them: chains of layers, whose constants are folded into weights and biases.

=============  =====================================================================================
`files`        models from files and into them; `from_onnx` and `to_onnx`
`tensors`      the arrays that a file holds: dense, sparse, and external data, which lie beside it
`folding`      what is computed from constants alone
`mixed`        which nodes become layers, and which ONNX Runtime computes
`probing`      the shapes of all values, found by computing them
`subgraphs`    what ONNX Runtime computes, as models of their own
`whole_graph`  the whole model, for ONNX Runtime
`graph`        the walk through the nodes, from the input to the output
`call`         a node with the values that it takes
`operators`    what each operator makes of a signal; those of images are in `image_operators`, those
               that only move numbers in `movements`
=============  =====================================================================================
"""

from sparsenn.io.importers.onnx.files import from_onnx, to_onnx

__all__ = ["from_onnx", "to_onnx"]
