"""Small kernels with one fault each, and their corrected twins."""

from micro import (
    bulk,
    global_memory,
    hand_backs,
    lane_waits,
    lanes,
    pipelines,
    programs,
    proxies,
    registers,
    scopes,
    shared,
    tensor,
    undefined,
)

MODULES = (
    shared,
    bulk,
    pipelines,
    programs,
    global_memory,
    tensor,
    registers,
    proxies,
    scopes,
    hand_backs,
    undefined,
    lanes,
    lane_waits,
)
KERNELS = [case for module in MODULES for case in module.KERNELS]
