"""What dense and grouped products share: from the specification to the FFI call."""
