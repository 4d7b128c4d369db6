#include "emulator/runtime/call_error.h"

#include <mutex>

#include "emulator/runtime/host_call.h"

namespace bwgemm::emulator {
namespace {

struct Described {
  cudaError_t code = cudaSuccess;
  std::string text;
};

thread_local cudaError_t last = cudaSuccess;  // what cudaGetLastError returns
thread_local Described described;             // outlives cudaGetLastError
std::mutex mutex;
Described standing;  // never changes once it is set

}  // namespace

cudaError_t FailReported(cudaError_t code, std::string text) {
  last = code;
  described = {code, std::move(text)};
  return code;
}

cudaError_t Fail(cudaError_t code, std::string text) {
  if (HostCall* call = HostCall::Current()) call->Failed(text, /*launch=*/false);
  return FailReported(code, std::move(text));
}

cudaError_t FailLaunch(cudaError_t code, std::string text) {
  if (HostCall* call = HostCall::Current()) call->Failed(text, /*launch=*/true);
  return FailReported(code, std::move(text));
}

CUresult FailDriver(CUresult code, std::string text) {
  described = {static_cast<cudaError_t>(code), std::move(text)};
  return code;
}

cudaError_t FailForGood(cudaError_t code, std::string text) {
  {
    std::lock_guard lock(mutex);
    if (standing.code == cudaSuccess) standing = {code, text};
  }
  return FailReported(code, std::move(text));
}

cudaError_t StandingError() {
  std::lock_guard lock(mutex);
  return standing.code;
}

}  // namespace bwgemm::emulator

using bwgemm::emulator::StandingError;

extern "C" {

cudaError_t cudaPeekAtLastError() {
  const cudaError_t standing = StandingError();
  return standing != cudaSuccess ? standing : bwgemm::emulator::last;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  bwgemm::emulator::last = cudaSuccess;  // the text stays, for cudaGetErrorString
  return error;
}

const char* cudaGetErrorString(cudaError_t error) {
  namespace emu = bwgemm::emulator;
  if (error == cudaSuccess) return "no error";
  if (error == emu::described.code) return emu::described.text.c_str();
  if (error == StandingError()) return emu::standing.text.c_str();
  return "error of the emulated CUDA runtime";
}

}  // extern "C"
