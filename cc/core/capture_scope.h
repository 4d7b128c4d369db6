// Work that CUDA may refuse while a stream is captured: loading a kernel, waiting for a stream.
#pragma once

#include <cuda_runtime_api.h>

namespace bwgemm {

// Allows it in this thread for the scope, whichever streams are captured meanwhile. What is done to
// a captured stream itself is still captured.
class CaptureScope {
 public:
  CaptureScope() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~CaptureScope() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace bwgemm
