#include "emulator/machine/targets.h"

#include <algorithm>
#include <array>

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

constexpr Need kBlackwellWhole{"sm_100f, sm_120f or the like",
                               [](Target t) { return t.number >= 100 && t.whole; }};
constexpr Need kDataCentre{"sm_100f, sm_103f or the like",
                           [](Target t) { return t.number >= 100 && t.number < 110 && t.whole; }};

// Forms of instructions that have more needs than the others of that name.
struct Form {
  std::string_view prefix;
  std::array<std::string_view, 3> parts;  // of the mnemonic, in any order; empty: none
  size_t operands;                        // as many or more
  const Need& need;
};
constexpr Form kForms[] = {
    {"add", {"f32x2"}, 0, kBlackwell},
    {"sub", {"f32x2"}, 0, kBlackwell},
    {"mul", {"f32x2"}, 0, kBlackwell},
    {"fma", {"f32x2"}, 0, kBlackwell},
    {"add", {"f32", "f16"}, 0, kBlackwell},
    {"add", {"f32", "bf16"}, 0, kBlackwell},
    {"sub", {"f32", "f16"}, 0, kBlackwell},
    {"sub", {"f32", "bf16"}, 0, kBlackwell},
    {"fma", {"f32", "f16"}, 0, kBlackwell},
    {"fma", {"f32", "bf16"}, 0, kBlackwell},
    {"min", {"f32"}, 4, kBlackwell},
    {"max", {"f32"}, 4, kBlackwell},
    {"cvt", {"satfinite", "tf32", "rn"}, 0, kBlackwell},
    {"cvt", {"satfinite", "tf32", "rz"}, 0, kBlackwell},
    {"cvt", {"e2m1x2"}, 0, kBlackwellWhole},
    {"cvt", {"e2m3x2"}, 0, kBlackwellWhole},
    {"cvt", {"e3m2x2"}, 0, kBlackwellWhole},
    {"cvt", {"ue8m0x2"}, 0, kBlackwellWhole},
    {"ld", {"v8", "b32"}, 0, kBlackwell},
    {"ld", {"v8", "u32"}, 0, kBlackwell},
    {"ld", {"v8", "s32"}, 0, kBlackwell},
    {"ld", {"v8", "f32"}, 0, kBlackwell},
    {"ld", {"v4", "b64"}, 0, kBlackwell},
    {"ld", {"v4", "u64"}, 0, kBlackwell},
    {"ld", {"v4", "s64"}, 0, kBlackwell},
    {"ld", {"v4", "f64"}, 0, kBlackwell},
    {"st", {"v8", "b32"}, 0, kBlackwell},
    {"st", {"v8", "u32"}, 0, kBlackwell},
    {"st", {"v8", "s32"}, 0, kBlackwell},
    {"st", {"v8", "f32"}, 0, kBlackwell},
    {"st", {"v4", "b64"}, 0, kBlackwell},
    {"st", {"v4", "u64"}, 0, kBlackwell},
    {"st", {"v4", "s64"}, 0, kBlackwell},
    {"st", {"v4", "f64"}, 0, kBlackwell},
    {"redux.sync", {"f32"}, 0, kDataCentre},
    {"ldmatrix", {"m16n16"}, 0, kBlackwellWhole},
    {"ldmatrix", {"m8n16"}, 0, kBlackwellWhole},
    {"stmatrix", {"m16n8"}, 0, kBlackwellWhole},
    {"cp.async.bulk.tensor", {"tile::gather4", "shared::cluster"}, 0, kTensorMemory},
    {"cp.async.bulk.tensor", {"tile::gather4"}, 0, kBlackwell},
    {"cp.async.bulk.tensor", {"tile::scatter4"}, 0, kTensorMemory},
    {"cp.async.bulk.tensor", {"cta_group::1"}, 0, kTensorMemory},
    {"cp.async.bulk.tensor", {"cta_group::2"}, 0, kTensorMemory},
    {"cp.async.bulk.prefetch.tensor", {"tile::gather4"}, 0, kTensorMemory},
    {"tensormap.replace", {"swizzle_atomicity"}, 0, kBlackwellWhole},
    {"clusterlaunchcontrol.try_cancel", {"multicast::cluster::all"}, 0, kBlackwellWhole},
};

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
    {"st.bulk", kBlackwell},
    {"stmatrix", kHopper},
};

bool starts(std::string_view mnemonic, std::string_view prefix) {
  if (mnemonic.substr(0, prefix.size()) != prefix) return false;
  const std::string_view rest = mnemonic.substr(prefix.size());
  return rest.empty() || rest[0] == '.' || rest[0] == ':';
}

bool is(const ptx::Statement& instruction, const Form& form) {
  return starts(instruction.mnemonic, form.prefix) &&
         instruction.operands.size() >= form.operands &&
         std::all_of(form.parts.begin(), form.parts.end(), [&](std::string_view part) {
           return part.empty() || std::find(instruction.parts.begin(), instruction.parts.end(),
                                            part) != instruction.parts.end();
         });
}

}  // namespace

std::string_view lacking_target(std::string_view target, const ptx::Statement& instruction) {
  const Target parsed = parse(target);
  if (parsed.number == 0) return {};
  for (const Form& form : kForms) {
    if (!form.need.met(parsed) && is(instruction, form)) return form.need.text;
  }
  for (const Entry& entry : kEntries) {
    if (!starts(instruction.mnemonic, entry.prefix)) continue;
    return entry.need.met(parsed) ? std::string_view{} : entry.need.text;
  }
  return {};
}

bool is_hopper(std::string_view target) { return parse(target).number == 90; }

}  // namespace bwgemm::emulator
