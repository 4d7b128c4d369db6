#include "emulator/runtime/host_call.h"

namespace bwgemm::emulator {
namespace {

thread_local HostCall* current = nullptr;

}  // namespace

HostCall::HostCall(GlobalMemory& memory, const Settings& settings, int device)
    : memory_(memory), settings_(settings), device_(device), previous_(current) {
  current = this;
}

HostCall::~HostCall() { current = previous_; }

HostCall* HostCall::Current() { return current; }

}  // namespace bwgemm::emulator
