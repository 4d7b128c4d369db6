"""Dense matrix multiplication: what differs from other products."""
