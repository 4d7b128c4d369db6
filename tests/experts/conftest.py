"""What all tests of layers of experts have in common."""

from __future__ import annotations

import pytest
from experts_cases import Arrays, operands


@pytest.fixture
def arrays() -> Arrays:
    """Rows sorted by expert, and every expert's matrices."""
    return operands()
