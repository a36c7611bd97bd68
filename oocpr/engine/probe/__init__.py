"""A second of measuring, from which a plan predicts how long a run takes."""
