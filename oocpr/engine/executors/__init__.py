"""Who carries out a pass: this process, several devices, or the workers of a Dask client."""
