#include "emulator/tensor/register.h"

namespace bwgemm::emulator {

uint8_t decode_cta_group(Decoder& decoder) {
  const std::string_view group = decoder.mod_one_of({"cta_group::1", "cta_group::2"});
  if (group.empty()) decoder.error("needs .cta_group::1 or .cta_group::2");
  return group == "cta_group::2" ? 2 : 1;
}

void register_tensor(IsaTable& table) {
  register_tcgen05_alloc(table);
  register_tcgen05_ldst(table);
  register_tcgen05_copy(table);
  register_tcgen05_mma(table);
  register_tcgen05_sync(table);
  register_tma_load(table);
  register_tma_store(table);
  register_bulk_copy(table);
  register_tensormap(table);
  register_wgmma(table);
  register_cluster_launch(table);
}

}  // namespace bwgemm::emulator
