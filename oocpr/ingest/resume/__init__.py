"""Imports that another process can finish."""
