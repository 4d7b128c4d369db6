// Variables of the device as host code names them.
#include <cuda_runtime_api.h>

#include <cstring>
#include <exception>
#include <string>

#include "emulator/runtime/call_error.h"
#include "emulator/runtime/program/program.h"
#include "emulator/runtime/registry.h"

using bwgemm::emulator::Fail;
using bwgemm::emulator::HostCall;

namespace {

struct Storage {
  uint8_t* data = nullptr;
  size_t bytes = 0;
};

cudaError_t FindSymbol(const void* symbol, Storage* storage) {
  namespace emu = bwgemm::emulator;
  if (const cudaError_t standing = emu::StandingError(); standing != cudaSuccess) return standing;
  const emu::RegisteredVariable* variable = emu::Registry::Get().FindVariable(symbol);
  if (variable == nullptr) {
    return Fail(cudaErrorInvalidSymbol, "the symbol names no variable of the device");
  }
  try {
    emu::Module& module = variable->fat->module();
    storage->data = module.variable(variable->name, &storage->bytes);
    if (storage->data == nullptr) {
      return Fail(cudaErrorInvalidSymbol, "the PTX has no variable '" + variable->name + "'");
    }
    emu::Program::Get().ShowVariables(module);
  } catch (const std::exception& e) {
    return Fail(cudaErrorInvalidKernelImage, std::string("emulator: ") + e.what());
  }
  return cudaSuccess;
}

// Finds [offset, offset + bytes) of the variable, for a copy.
cudaError_t FindPart(const char* function, const void* symbol, size_t offset, size_t bytes,
                     uint8_t** part) {
  HostCall::EndLaunches();
  Storage storage;
  const cudaError_t error = FindSymbol(symbol, &storage);
  if (error != cudaSuccess) return error;
  if (offset > storage.bytes || bytes > storage.bytes - offset) {
    return Fail(cudaErrorInvalidValue, std::string(function) + " of " + std::to_string(bytes) +
                                           " bytes at " + std::to_string(offset) +
                                           " of a variable of " + std::to_string(storage.bytes));
  }
  *part = storage.data + offset;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  Storage storage;
  const cudaError_t error = FindSymbol(symbol, &storage);
  *pointer = storage.data;
  return error;
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  Storage storage;
  const cudaError_t error = FindSymbol(symbol, &storage);
  *bytes = storage.bytes;
  return error;
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind) {
  uint8_t* to = nullptr;
  const cudaError_t error = FindPart("cudaMemcpyToSymbol", symbol, offset, bytes, &to);
  if (error == cudaSuccess) std::memcpy(to, from, bytes);
  return error;
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind) {
  uint8_t* from = nullptr;
  const cudaError_t error = FindPart("cudaMemcpyFromSymbol", symbol, offset, bytes, &from);
  if (error == cudaSuccess) std::memcpy(to, from, bytes);
  return error;
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpyFromSymbol(to, symbol, bytes, offset, kind);
}

}  // extern "C"
