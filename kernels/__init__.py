"""CUDA C++ sources, read as package data and compiled at run time."""
