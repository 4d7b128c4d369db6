"""`DISABLE_EXPORT_CHECKS`: tells `jax.export` that our custom calls are stable interfaces."""

from __future__ import annotations

import jax.export

from jax_bwgemm.product.targets import QUANTIZE_TARGETS, TARGETS, V1_TARGETS

# Pass to jax.export.export(..., disabled_checks=DISABLE_EXPORT_CHECKS). Targets are versioned and
# kernels travel by stable names, so exported programs stay loadable. Programs partitioned by the
# compiler cannot be serialised (JAX: "serialization of host_callbacks"); shard_map ones can.
DISABLE_EXPORT_CHECKS = [
    jax.export.DisabledSafetyCheck.custom_call(target)
    for target in (
        *TARGETS.values(),
        *QUANTIZE_TARGETS.values(),
        *V1_TARGETS,
        "LayoutConstraint",  # XLA's own, that `accelerate` makes
    )
]
