"""Tuning: measures kernels on a GPU, keeps the fastest, and finds them again."""
