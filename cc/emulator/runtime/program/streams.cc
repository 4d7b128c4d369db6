// Streams and events. Work is done when it is issued, so there is never anything to wait for.
#include <cuda_runtime_api.h>

#include <chrono>
#include <mutex>
#include <set>

#include "emulator/runtime/call_error.h"
#include "emulator/runtime/host_call.h"

using bwgemm::emulator::Fail;
using bwgemm::emulator::HostCall;
using bwgemm::emulator::StandingError;
using Clock = std::chrono::steady_clock;

struct CUstream_st {
  unsigned flags = 0;
  int priority = 0;
};

struct CUevent_st {
  bool timed = true;
  bool recorded = false;
  Clock::time_point time;
};

namespace {

std::mutex mutex;

// Handles that were given out and not taken back.
template <typename T>
std::set<T*>& Live() {
  static auto* const live = new std::set<T*>;  // outlives static destructors of the program
  return *live;
}

template <typename T>
T* Create() {
  std::lock_guard lock(mutex);
  return *Live<T>().insert(new T).first;
}

template <typename T>
bool IsLive(T* handle) {
  std::lock_guard lock(mutex);
  return Live<T>().count(handle) != 0;
}

template <typename T>
bool Destroy(T* handle) {
  std::lock_guard lock(mutex);
  if (Live<T>().erase(handle) == 0) return false;
  delete handle;
  return true;
}

bool IsDefault(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

// For everything that is done on a stream or asked of it.
cudaError_t CheckStream(cudaStream_t stream) {
  HostCall::EndLaunches();
  if (const cudaError_t standing = StandingError(); standing != cudaSuccess) return standing;
  if (IsDefault(stream) || IsLive(stream)) return cudaSuccess;
  return Fail(cudaErrorInvalidResourceHandle, "the stream was destroyed or never created");
}

cudaError_t CheckEvent(cudaEvent_t event) {
  HostCall::EndLaunches();
  if (const cudaError_t standing = StandingError(); standing != cudaSuccess) return standing;
  if (IsLive(event)) return cudaSuccess;
  return Fail(cudaErrorInvalidResourceHandle, "the event was destroyed or never created");
}

}  // namespace

extern "C" {

cudaError_t cudaDeviceSynchronize() {
  HostCall::EndLaunches();
  return StandingError();
}

// --- Streams

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  *stream = Create<CUstream_st>();
  (*stream)->flags = flags;
  (*stream)->priority = priority;
  return StandingError();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  HostCall::EndLaunches();  // another stream may get its handle
  if (!IsDefault(stream) && Destroy(stream)) return cudaSuccess;
  return Fail(cudaErrorInvalidResourceHandle, "the stream was destroyed or never created");
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return CheckStream(stream); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return CheckStream(stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const cudaError_t error = CheckStream(stream);
  return error != cudaSuccess ? error : CheckEvent(event);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = 0;
  const cudaError_t error = CheckStream(stream);
  if (error == cudaSuccess && !IsDefault(stream)) *priority = stream->priority;
  return error;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  *flags = cudaStreamDefault;
  const cudaError_t error = CheckStream(stream);
  if (error == cudaSuccess && !IsDefault(stream)) *flags = stream->flags;
  return error;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return CheckStream(stream);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const cudaError_t error = CheckStream(stream);
  if (error == cudaSuccess) function(data);
  return error;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data,
                                  unsigned) {
  const cudaError_t error = CheckStream(stream);
  if (error == cudaSuccess) function(stream, cudaSuccess, data);
  return error;
}

// --- Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = Create<CUevent_st>();
  (*event)->timed = (flags & cudaEventDisableTiming) == 0;
  return StandingError();
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (Destroy(event)) return cudaSuccess;
  return Fail(cudaErrorInvalidResourceHandle, "the event was destroyed or never created");
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  cudaError_t error = CheckStream(stream);
  if (error == cudaSuccess) error = CheckEvent(event);
  if (error != cudaSuccess) return error;
  event->recorded = true;
  event->time = Clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) { return CheckEvent(event); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return CheckEvent(event); }

// Time of this machine, not of a GPU.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = 0;
  cudaError_t error = CheckEvent(start);
  if (error == cudaSuccess) error = CheckEvent(end);
  if (error != cudaSuccess) return error;
  if (!start->timed || !end->timed || !start->recorded || !end->recorded) {
    return Fail(cudaErrorInvalidResourceHandle,
                "cudaEventElapsedTime of an event that was not recorded, or has no timing");
  }
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}

}  // extern "C"
