// The instruction families of tensor/, each with one function that adds its entries.
#pragma once

#include "emulator/isa/isa.h"

namespace bwgemm::emulator {

void register_tcgen05_alloc(IsaTable& table);
void register_tcgen05_ldst(IsaTable& table);
void register_tcgen05_copy(IsaTable& table);
void register_tcgen05_mma(IsaTable& table);
void register_tcgen05_sync(IsaTable& table);
void register_tma_load(IsaTable& table);
void register_tma_store(IsaTable& table);
void register_bulk_copy(IsaTable& table);
void register_tensormap(IsaTable& table);
void register_wgmma(IsaTable& table);
void register_cluster_launch(IsaTable& table);

// Consumes .cta_group::1 or .cta_group::2; an error if neither is there.
uint8_t decode_cta_group(Decoder& decoder);

}  // namespace bwgemm::emulator
