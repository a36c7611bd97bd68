"""The same operations on NumPy, on numba and on CUDA."""
