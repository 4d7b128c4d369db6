"""Small kernels with one fault each, and their corrected twins."""

from micro import (
    arrivals,
    bulk,
    counters,
    global_memory,
    hand_backs,
    lane_waits,
    lanes,
    maps,
    pipelines,
    programs,
    proxies,
    registers,
    scopes,
    shared,
    tensor,
    tensor_orders,
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
    counters,
    arrivals,
    maps,
    tensor_orders,
)
KERNELS = [case for module in MODULES for case in module.KERNELS]
