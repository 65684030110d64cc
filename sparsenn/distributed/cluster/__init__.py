"""Networks on a Dask cluster.

==================  =================================================================================================
`library`           dask and distributed, or what to install
`sessions`          in each worker: one session for a network and options
`rows`              rows cut for tasks: of arrays, of files, of Dask arrays
`tasks`             what workers do, and what is asked of a cluster
`local`             a cluster of this machine
`api`               what callers use
==================  =================================================================================================
"""

__all__ = ()
