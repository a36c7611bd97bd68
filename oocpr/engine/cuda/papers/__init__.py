"""The products of other systems, each with its own layout of the matrix, to compare with the default."""
