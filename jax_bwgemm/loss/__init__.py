"""Losses whose logits are products on the tensor cores."""
