"""Node ids, labels and attributes in the order of the rows."""
