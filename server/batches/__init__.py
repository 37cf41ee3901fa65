"""Files of requests and their batches: the lines, the folder on disk, and what answers them."""
