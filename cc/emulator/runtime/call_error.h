// The last error of the emulated CUDA runtime: what cudaGetLastError returns and
// cudaGetErrorString explains.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

namespace bwgemm::emulator {

// Remembers the error for this thread; returns `code`.
cudaError_t Fail(cudaError_t code, std::string text);

// The same of a launch that did not take place, and of one whose report has been handed on.
cudaError_t FailLaunch(cudaError_t code, std::string text);
cudaError_t FailReported(cudaError_t code, std::string text);

// Of a function of the driver: cudaGetLastError does not return it, cuGetErrorString explains it.
CUresult FailDriver(CUresult code, std::string text);

// The same for all threads and for good: what a reported fault of a kernel does to a program's
// device.
cudaError_t FailForGood(cudaError_t code, std::string text);

// The error of FailForGood; cudaSuccess if there was none.
cudaError_t StandingError();

}  // namespace bwgemm::emulator
