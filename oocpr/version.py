"""Which version this is, for those that may not import the package itself."""

__version__ = "0.1.0"
