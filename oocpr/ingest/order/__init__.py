"""The row of the store that each node becomes."""
