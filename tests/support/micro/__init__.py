"""Small kernels with one fault each, and their corrected twins."""

from micro import bulk, global_memory, pipelines, registers, shared, tensor

MODULES = (shared, bulk, pipelines, global_memory, tensor, registers)
KERNELS = [case for module in MODULES for case in module.KERNELS]
