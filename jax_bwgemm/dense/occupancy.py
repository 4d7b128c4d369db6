"""How many CTAs of a static launch are in flight at once: a mirror of CUTLASS's rule for SM90."""

# Multiprocessors of a GPC on SM90, within which a cluster runs. Some GPCs of a GPU may have fewer.
SMS_PER_GPC = 18


def concurrent_ctas(sm_count: int, cluster: int) -> int:
    """CTAs in flight at once: whole clusters in every group of multiprocessors."""
    if cluster == 1:
        return sm_count
    groups = max(1, sm_count // SMS_PER_GPC)
    rest = sm_count % SMS_PER_GPC if sm_count >= SMS_PER_GPC else 0
    count = groups * (SMS_PER_GPC - SMS_PER_GPC % cluster) + rest - rest % cluster
    return min(sm_count, count)
