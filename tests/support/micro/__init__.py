"""Small kernels with one fault each, and their corrected twins."""

from micro import bulk, global_memory, pipelines, programs, registers, shared, tensor

MODULES = (shared, bulk, pipelines, programs, global_memory, tensor, registers)
KERNELS = [case for module in MODULES for case in module.KERNELS]
