// cudaError_t -> Status, with the failing expression and its place.
#pragma once

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "core/status.h"

namespace bwgemm {

inline Status CudaStatus(cudaError_t error, const char* expr, const char* file, int line) {
  if (error == cudaSuccess) return Status::Ok();
  (void)cudaGetLastError();  // clear the sticky-per-thread copy, or the next call reports ours
  const char* slash = std::strrchr(file, '/');  // build machines' paths are nobody's business
  return Status::Internal(std::string(slash ? slash + 1 : file) + ":" + std::to_string(line) +
                          ": " + expr + ": " + cudaGetErrorString(error));
}

}  // namespace bwgemm

#define BWGEMM_CUDA_STATUS(expr) ::bwgemm::CudaStatus((expr), #expr, __FILE__, __LINE__)
#define BWGEMM_RETURN_IF_CUDA_ERROR(expr) BWGEMM_RETURN_IF_ERROR(BWGEMM_CUDA_STATUS(expr))
