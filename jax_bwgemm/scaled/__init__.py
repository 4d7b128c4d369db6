"""Products of 8-bit and 4-bit floating-point values with scales."""
