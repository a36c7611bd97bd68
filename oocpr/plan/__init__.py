"""Integers in, a frozen plan out: no Zarr, no CUDA, no Dask."""
