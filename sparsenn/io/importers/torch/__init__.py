"""Networks from modules of PyTorch.

===========  ====================================================================================
`module`     `from_torch`: a module of known kinds, or a `Sequential` of them
`graph`      modules with their own forward function: the graph that `torch.export` makes
`aten`       the operators of such a graph
`operators`  functions of a signal that modules and graphs share
===========  ====================================================================================
"""

__all__ = []
