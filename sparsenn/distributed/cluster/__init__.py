"""Networks on a Dask cluster.

==================  =================================================================================================
`library`           dask and distributed, or what to install
`rows`              rows cut for tasks: of arrays, of files, of Dask arrays
`work`              the work of workers: a session in each, and its outputs
`tasks`             tasks and requests of a cluster
`local`             a cluster of this machine
`api`               what callers use
==================  =================================================================================================
"""

__all__ = ()
