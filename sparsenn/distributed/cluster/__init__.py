"""Networks on a Dask cluster.

==================  =================================================================================================
`library`           dask and distributed, or what to install
`digests`           what a network, options and rows are known by
`sessions`          in each worker: one session for a network and options
`parts`             rows in parts: of arrays, of files
`gathering`         parts computed by a cluster, and done again where a worker is lost
`pieces`            outputs in a folder, piece by piece, to go on after any crash
`local`             a cluster of this machine
`api`               what callers use
==================  =================================================================================================
"""

__all__ = ()
