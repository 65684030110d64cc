"""Networks on a Dask cluster.

==================  =================================================================================================
`library`           dask and distributed, or what to install
`rows`              rows as Dask arrays: of arrays, of files
`work`              the work of workers: a session in each, and its outputs
`local`             a cluster of this machine
`api`               what callers use
==================  =================================================================================================
"""

__all__ = ()
