"""What all families of products share: from the specification to the FFI call."""
