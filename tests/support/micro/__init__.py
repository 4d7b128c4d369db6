"""Small kernels with one fault each, and their corrected twins."""
