"""Layers of experts: grouped products with what lies between and around them."""
