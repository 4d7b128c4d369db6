#include "emulator/machine/targets.h"

namespace bwgemm::emulator {
namespace {

struct Target {
  int number = 0;      // 90; 0: not known
  bool whole = false;  // sm_90a or sm_100f, which have more than later architectures do
};

Target parse(std::string_view text) {
  Target target;
  if (text.substr(0, 3) != "sm_") return target;
  text.remove_prefix(3);
  while (!text.empty() && text[0] >= '0' && text[0] <= '9' && target.number < 1000) {
    target.number = 10 * target.number + (text[0] - '0');
    text.remove_prefix(1);
  }
  target.whole = text == "a" || text == "f";
  return target;
}

struct Need {
  std::string_view text;
  bool (*met)(Target);
};
constexpr Need kHopper{"sm_90 or higher", [](Target t) { return t.number >= 90; }};
constexpr Need kBlackwell{"sm_100 or higher", [](Target t) { return t.number >= 100; }};
constexpr Need kHopperAlone{"sm_90a", [](Target t) { return t.number == 90 && t.whole; }};
constexpr Need kWhole{"sm_90a, sm_100f or the like",
                      [](Target t) { return t.number >= 90 && t.whole; }};
constexpr Need kTensorMemory{"sm_100f or the like",
                             [](Target t) { return t.number >= 100 && t.number < 120 && t.whole; }};

struct Entry {
  std::string_view prefix;
  const Need& need;
};
constexpr Entry kEntries[] = {
    {"wgmma", kHopperAlone},
    {"tcgen05", kTensorMemory},
    {"setmaxnreg", kWhole},
    {"tensormap.replace", kWhole},
    {"clusterlaunchcontrol", kBlackwell},
    {"barrier.cluster", kHopper},
    {"cp.async.bulk", kHopper},
    {"cp.reduce.async.bulk", kHopper},
    {"elect", kHopper},
    {"fence.mbarrier_init", kHopper},
    {"fence.proxy.async", kHopper},
    {"getctarank", kHopper},
    {"griddepcontrol", kHopper},
    {"mapa", kHopper},
    {"mbarrier.try_wait", kHopper},
    {"multimem", kHopper},
    {"red.async", kHopper},
    {"st.async", kHopper},
    {"stmatrix", kHopper},
};

}  // namespace

std::string_view lacking_target(std::string_view target, std::string_view mnemonic) {
  const Target parsed = parse(target);
  if (parsed.number == 0) return {};
  for (const Entry& entry : kEntries) {
    if (mnemonic.substr(0, entry.prefix.size()) != entry.prefix) continue;
    const std::string_view rest = mnemonic.substr(entry.prefix.size());
    if (!rest.empty() && rest[0] != '.' && rest[0] != ':') continue;
    return entry.need.met(parsed) ? std::string_view{} : entry.need.text;
  }
  return {};
}

}  // namespace bwgemm::emulator
