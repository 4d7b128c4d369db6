// Memory as programs allocate, fill and copy it. Everything is done when a call returns.
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "emulator/runtime/call_error.h"
#include "emulator/runtime/program/program.h"

using bwgemm::emulator::Fail;
using bwgemm::emulator::HostCall;
using bwgemm::emulator::Program;
using bwgemm::emulator::StandingError;
using Kind = bwgemm::emulator::Program::Kind;

namespace {

cudaError_t Allocate(const char* function, void** pointer, size_t bytes, Kind kind) {
  if (const cudaError_t standing = StandingError(); standing != cudaSuccess) return standing;
  if (pointer == nullptr) return Fail(cudaErrorInvalidValue, std::string(function) + " to null");
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  *pointer = Program::Get().Allocate(bytes, kind);
  if (*pointer != nullptr) return cudaSuccess;
  return Fail(cudaErrorMemoryAllocation,
              std::string(function) + " of " + std::to_string(bytes) + " bytes: out of memory");
}

cudaError_t Free(const char* function, void* pointer, Kind kind) {
  HostCall::EndLaunches();
  if (pointer == nullptr || Program::Get().Free(pointer, kind)) return cudaSuccess;
  return Fail(cudaErrorInvalidValue,
              std::string(function) +
                  " of an address that was not allocated so, or was freed before: " +
                  Program::Get().Describe(pointer));
}

// An error if [pointer, pointer + bytes) is not the device's.
cudaError_t CheckDevice(const char* function, const char* side, const void* pointer, size_t bytes) {
  if (Program::Get().Visible(pointer, bytes)) return cudaSuccess;
  return Fail(cudaErrorInvalidValue,
              std::string(function) + " of " + std::to_string(bytes) + " bytes: its " + side +
                  " is no device memory: " + Program::Get().Describe(pointer));
}

cudaError_t CheckSides(const char* function, const void* to, const void* from, size_t bytes,
                       cudaMemcpyKind kind) {
  if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) {
    const cudaError_t error = CheckDevice(function, "destination", to, bytes);
    if (error != cudaSuccess) return error;
  }
  if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) {
    const cudaError_t error = CheckDevice(function, "source", from, bytes);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t Copy(const char* function, void* to, const void* from, size_t bytes,
                 cudaMemcpyKind kind) {
  if (const cudaError_t standing = StandingError(); standing != cudaSuccess) return standing;
  HostCall::EndLaunches();
  if (bytes == 0) return cudaSuccess;
  const cudaError_t error = CheckSides(function, to, from, bytes, kind);
  if (error == cudaSuccess) std::memmove(to, from, bytes);
  return error;
}

cudaError_t Copy2D(const char* function, void* to, size_t to_pitch, const void* from,
                   size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind) {
  if (width > to_pitch || width > from_pitch) {
    return Fail(cudaErrorInvalidPitchValue, std::string(function) + ": rows of " +
                                                std::to_string(width) +
                                                " bytes are longer than a pitch");
  }
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = Copy(function, static_cast<char*>(to) + row * to_pitch,
                                   static_cast<const char*>(from) + row * from_pitch, width, kind);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return Allocate("cudaMalloc", pointer, bytes, Kind::kDevice);
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t) {
  return Allocate("cudaMallocAsync", pointer, bytes, Kind::kDevice);
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned) {
  return Allocate("cudaMallocManaged", pointer, bytes, Kind::kManaged);
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  constexpr size_t kStep = 512;
  size_t row, bytes;
  if (pitch == nullptr) {
    return Fail(cudaErrorInvalidValue, "cudaMallocPitch: no place for the pitch");
  }
  if (__builtin_add_overflow(width, kStep - 1, &row) ||
      __builtin_mul_overflow(row / kStep * kStep, height, &bytes)) {
    return Fail(cudaErrorMemoryAllocation, "cudaMallocPitch: more bytes than 2^64 - 1");
  }
  *pitch = row / kStep * kStep;
  return Allocate("cudaMallocPitch", pointer, bytes, Kind::kDevice);
}

cudaError_t cudaFree(void* pointer) { return Free("cudaFree", pointer, Kind::kDevice); }

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t) {
  return Free("cudaFreeAsync", pointer, Kind::kDevice);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return Allocate("cudaMallocHost", pointer, bytes, Kind::kHost);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return Allocate("cudaHostAlloc", pointer, bytes, Kind::kHost);
}

cudaError_t cudaFreeHost(void* pointer) { return Free("cudaFreeHost", pointer, Kind::kHost); }

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  if (pointer == nullptr || bytes == 0) {
    return Fail(cudaErrorInvalidValue, "cudaHostRegister of nothing");
  }
  if (Program::Get().Register(pointer, bytes)) return cudaSuccess;
  return Fail(cudaErrorHostMemoryAlreadyRegistered,
              "cudaHostRegister: a part of the memory is registered already");
}

cudaError_t cudaHostUnregister(void* pointer) {
  if (Program::Get().Free(pointer, Kind::kRegistered)) return cudaSuccess;
  return Fail(cudaErrorHostMemoryNotRegistered, "cudaHostUnregister: no registered memory");
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;  // one address space
  return CheckDevice("cudaHostGetDevicePointer", "memory", host, 1);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return Copy("cudaMemcpy", to, from, bytes, kind);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  return Copy("cudaMemcpyAsync", to, from, bytes, kind);
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return Copy2D("cudaMemcpy2D", to, to_pitch, from, from_pitch, width, height, kind);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t) {
  return Copy2D("cudaMemcpy2DAsync", to, to_pitch, from, from_pitch, width, height, kind);
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  return cudaMemsetAsync(pointer, value, bytes, nullptr);
}

cudaError_t cudaMemset2D(void* pointer, size_t pitch, int value, size_t width, size_t height) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        cudaMemsetAsync(static_cast<char*>(pointer) + row * pitch, value, width, nullptr);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  *free = static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * page;
  *total = Program::TotalBytes();
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  const Program::Allocation* found = Program::Get().Find(pointer);
  void* const address = const_cast<void*>(pointer);
  attributes->hostPointer = address;
  if (found == nullptr) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    return cudaSuccess;
  }
  attributes->devicePointer = address;
  switch (found->kind) {
    case Kind::kDevice:
      attributes->type = cudaMemoryTypeDevice;
      attributes->hostPointer = nullptr;
      break;
    case Kind::kManaged:
      attributes->type = cudaMemoryTypeManaged;
      break;
    default:
      attributes->type = cudaMemoryTypeHost;
  }
  return cudaSuccess;
}

}  // extern "C"
