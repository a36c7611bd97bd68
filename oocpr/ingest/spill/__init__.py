"""Keys of edges in temporary files, partitioned into buckets."""
