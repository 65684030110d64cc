"""Networks from files and models of Keras, without Keras.

============  ==============================================================
`model`       `from_keras`, and the reader of `.keras` and `.h5` files
`graph`       the layers of a model in order, and the layers that each reads
`reading`     one layer with its configuration and weights
`layers`      a signal after each kind of layer
`operations`  a signal after each function of `keras.ops`
`weights`     the arrays of a file or of a model in memory
============  ==============================================================
"""

__all__ = []
