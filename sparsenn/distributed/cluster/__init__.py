"""Networks on a Dask cluster.

==================  =================================================================================================
`library`           dask and distributed, or what to install
`sessions`          in each worker: one session for a network and options
`plugin`            a network sent to every worker, also to those that come later
`parts`             rows in parts: of arrays, of files
`chunked`           rows in parts: of Dask arrays
`gathering`         parts computed by a cluster, and done again where a worker is lost
`keyed`             connections that take a key
`local`             a cluster of this machine
`api`               what callers use
==================  =================================================================================================
"""

__all__ = ()
