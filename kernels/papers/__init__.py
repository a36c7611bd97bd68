"""CUDA C++ sources of the products that are compared with."""
