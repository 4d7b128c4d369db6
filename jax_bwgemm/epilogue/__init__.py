"""Elementwise functions of a product's result: traced, checked, written as C++."""
