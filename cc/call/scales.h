// The scales of a call's operands.
#pragma once

#include <string_view>

#include "call/product_call.h"
#include "scaled/problem.h"

namespace bwgemm::call {

// The scales of an operand [batch, rows, k] or, with experts, [batch, experts, rows, k].
// bands: how many tiles of 128 rows hold the scales that an MMA reads. 0: as many as the rows fill;
// otherwise each expert's rows begin in a tile of their own.
Status SetScales(Role role, const Buffer& buffer, std::string_view scaling, int64_t batch,
                 int64_t experts, int64_t rows, int64_t k, scaled::Scales* scales,
                 int64_t bands = 0);

// InvalidArgument unless the kernel applies scales where the call's layouts need it.
Status CheckUse(const KernelInfo& kernel, const Options& options);

}  // namespace bwgemm::call
