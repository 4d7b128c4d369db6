"""`python -m jax_bwgemm`."""

import sys

from jax_bwgemm.cli import main

sys.exit(main())
