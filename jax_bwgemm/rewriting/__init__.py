"""Rewrites traced programs so that their products run on this package's kernels."""
