#include "emulator/runtime/host_call.h"

namespace bwgemm::emulator {
namespace {

thread_local HostCall* current = nullptr;
HostCall* (*default_call)() = nullptr;

}  // namespace

HostCall::HostCall(GlobalMemory& memory, const Settings& settings, int device)
    : memory_(memory), settings_(settings), device_(device), scoped_(true), previous_(current) {
  current = this;
}

HostCall::HostCall(Default, GlobalMemory& memory, const Settings& settings, int device)
    : memory_(memory), settings_(settings), device_(device), scoped_(false), previous_(nullptr) {}

HostCall::~HostCall() {
  if (scoped_) current = previous_;
}

HostCall* HostCall::Current() {
  if (current == nullptr && default_call != nullptr) return default_call();
  return current;
}

void HostCall::EndLaunches() {
  HostCall* call = Current();
  if (call == nullptr) return;
  std::lock_guard lock(Session::Get().run_mutex());
  call->before_.history.reset();
}

void HostCall::SetDefault(HostCall* (*call)()) { default_call = call; }

}  // namespace bwgemm::emulator
