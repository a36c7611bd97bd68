"""The backend for processors, compiled by numba."""
