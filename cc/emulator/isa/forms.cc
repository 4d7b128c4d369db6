#include "emulator/isa/forms.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "emulator/machine/decoder.h"

namespace bwgemm::emulator {
namespace {

// One form a line, as ptxas knows them: the names, then groups of modifiers or types of which an
// instruction has one each, or (?) at most one. /3: with as many operands; @9.1: from this version
// of PTX on. Modifiers may come in any order, types may not.
constexpr std::string_view kForms[] = {
    // Integers (PTX ISA 9.7.1, 9.7.2)
    "add|sub INT",
    "add|sub sat s32",
    "add|sub cc LONG",
    "add u16x2|s16x2",
    "addc|subc cc? LONG",
    "mul|mad lo|hi INT",
    "mul|mad wide u16|s16|u32|s32",
    "mad hi sat s32",
    "mad lo|hi cc LONG",
    "madc lo|hi cc? LONG",
    "mul24|mad24 lo|hi u32|s32",
    "div|rem|sad INT",
    "abs|neg s16|s32|s64",
    "min|max INT",
    "min|max u16x2|s16x2",
    "min|max relu s32|s16x2",
    "popc|clz|brev|bfi b32|b64",
    "bfind shiftamt? LONG",
    "bfe LONG",
    "szext clamp|wrap u32|s32",
    "bmsk clamp|wrap b32",
    "fns b32",
    "dp4a u32|s32 u32|s32",
    "dp2a lo|hi u32|s32 u32|s32",
    // Floats (9.7.3 - 9.7.5)
    "add|sub|mul ROUND? ftz? sat? f32",
    "add|sub|mul ROUND? ftz? f32x2",
    "add|sub|mul ROUND? f64",
    "add|sub|mul rn? ftz? sat? f16|f16x2",
    "add|sub|mul rn? bf16|bf16x2",
    "add|sub|fma rn f32 f16|bf16",
    "add|sub f32 f16|bf16",
    "mad|fma ROUND ftz? sat? f32",
    "mad|fma ROUND f64",
    "fma ROUND ftz? f32x2",
    "fma rn ftz? sat? f16|f16x2",
    "fma rn ftz? relu f16|f16x2",
    "fma rn relu? bf16|bf16x2",
    "div|rcp approx ftz? f32",
    "div full ftz? f32",
    "div|rcp|sqrt ROUND ftz? f32",
    "div|sqrt ROUND f64",
    "rcp ROUND ftz? f64",
    "rcp approx ftz f64",
    "sqrt|rsqrt|sin|cos|lg2|ex2 approx ftz? f32",
    "rsqrt approx ftz? f64",
    "ex2 approx f16|f16x2",
    "ex2 approx ftz bf16|bf16x2",
    "tanh approx f32|f16|f16x2|bf16|bf16x2",
    "abs|neg ftz? f32|f16|f16x2",
    "abs|neg f64|bf16|bf16x2",
    "copysign f32|f64",
    "min|max/3 ftz? NaN? f32|f16|f16x2",
    "min|max/3 ftz? NaN? xorsign abs f32|f16|f16x2",
    "min|max/3 NaN? bf16|bf16x2",
    "min|max/3 NaN? xorsign abs bf16|bf16x2",
    "min|max/3 f64",
    "min|max/4 ftz? NaN? abs? f32",
    // Comparisons (9.7.6)
    "setp SAME COMBINE? BITS",
    "setp ORDER COMBINE? SIGNED",
    "setp ORDER|UNSIGNED COMBINE? u16|u32|u64",
    "setp ORDER|UNORDERED COMBINE? ftz? f32|f16|f16x2",
    "setp ORDER|UNORDERED COMBINE? f64|bf16|bf16x2",
    "set SAME COMBINE? SET BITS",
    "set ORDER COMBINE? SET SIGNED",
    "set ORDER|UNSIGNED COMBINE? SET u16|u32|u64",
    "set ORDER|UNORDERED COMBINE? ftz? u32|s32|f32|f16 f32",
    "set ORDER|UNORDERED COMBINE? bf16 f32|f16",
    "set ORDER|UNORDERED COMBINE? SET f64",
    "set ORDER|UNORDERED COMBINE? ftz? u16|s16|u32|s32|f16 f16",
    "set ORDER|UNORDERED COMBINE? u16|s16|u32|s32|bf16 bf16",
    "set ORDER|UNORDERED COMBINE? ftz? u32|s32|f16x2 f16x2",
    "set ORDER|UNORDERED COMBINE? u32|s32|bf16x2 bf16x2",
    "selp BITS|INT|f32|f64",
    "slct BITS|INT|f32|f64 s32",
    "slct ftz? BITS|INT|f32|f64 f32",
    // Logic (9.7.8)
    "and|or|xor|not BITS|pred",
    "cnot|shl BITS",
    "shr BITS|INT",
    "shf l|r clamp|wrap b32",
    "lop3 and|or? b32",
    "prmt f4e|b4e|rc8|ecl|ecr|rc16? b32",
    // Moves (9.7.9)
    "mov BITS|INT|f32|f64|b128|pred",
    "cvta to? SPACE u64",
    "isspacep SPACE",
    "mapa|getctarank shared::cluster? LONG",
    // Loads and stores (9.7.9.8 - 9.7.9.13). isa/memory.cc knows how large vectors may be.
    "ld weak? const|local|PARAM|SHARED CACHED? VECTOR? VALUE",
    "ld weak? global? CACHED? L2EVICT? HINT? FETCH? VECTOR? VALUE",
    "ld weak? global? L1EVICT? L2EVICT? HINT? FETCH? VECTOR? VALUE",
    "ld global ca|cg|cs? nc L2EVICT? HINT? FETCH? VECTOR? VALUE",
    "ld global nc L1EVICT L2EVICT? HINT? FETCH? VECTOR? VALUE",
    "ld volatile SHARED VECTOR? VALUE",
    "ld volatile global? L2EVICT? FETCH? VECTOR? VALUE",
    "ld relaxed|acquire SCOPE SHARED VECTOR? VALUE",
    "ld relaxed|acquire SCOPE global? L1EVICT? L2EVICT? HINT? FETCH? VECTOR? VALUE",
    "ld mmio relaxed sys global? VALUE",
    "ldu global? v2|v4? VALUE",
    "st weak? local|PARAM|SHARED WRITTEN? VECTOR? VALUE",
    "st weak? global? WRITTEN? L2EVICT? HINT? VECTOR? VALUE",
    "st weak? global? L1EVICT? L2EVICT? HINT? VECTOR? VALUE",
    "st volatile SHARED VECTOR? VALUE",
    "st volatile global? L2EVICT? VECTOR? VALUE",
    "st relaxed|release SCOPE SHARED VECTOR? VALUE",
    "st relaxed|release SCOPE global? L1EVICT? L2EVICT? HINT? VECTOR? VALUE",
    "st mmio relaxed sys global? VALUE",
    "st.async weak? SHARED? SIGNAL v2|v4? b32|b64|LONG|f32|f64",
    "st.async cluster shared::cluster? SIGNAL v2|v4? b32|b64|LONG|f32|f64",
    "st.async weak? OWN? v2|v4? b32|b64|LONG|f32|f64",
    "red.async relaxed cluster shared::cluster? SIGNAL add LONG",
    "red.async relaxed cluster shared::cluster? SIGNAL min|max u32|s32",
    "red.async relaxed cluster shared::cluster? SIGNAL inc|dec u32",
    "red.async relaxed cluster shared::cluster? SIGNAL and|or|xor b32",
    // Conversions (9.7.9.21)
    "cvt BYTE BYTE",
    "cvt sat u8|u16|u32|u64 s8|s16|s32|s64",
    "cvt sat u8|s8 u16|s16|LONG",
    "cvt sat s8 u8",
    "cvt sat u16 LONG",
    "cvt sat s16 u16|LONG",
    "cvt sat u32|s32 u64|s64",
    "cvt sat s32 u32",
    "cvt sat s64 u64",
    "cvt INTEGRAL ftz? sat? BYTE f32",
    "cvt INTEGRAL sat? BYTE f16|f64",
    "cvt INTEGRAL INT bf16",
    "cvt ROUND ftz? sat? f32 BYTE|f64",
    "cvt ROUND sat? f16|f64 BYTE",
    "cvt ROUND sat? f16 f64",
    "cvt ROUND bf16 INT|f64",
    "cvt INTEGRAL? ftz? sat? f32 f32",
    "cvt INTEGRAL? sat? f16 f16",
    "cvt INTEGRAL? sat? f64 f64",
    "cvt INTEGRAL? bf16 bf16",
    "cvt ftz? sat? f32 f16",
    "cvt ftz? sat? f64 f32",
    "cvt sat? f64 f16",
    "cvt ROUND? f16|f64 bf16",
    "cvt ROUND? bf16 f16",
    "cvt ROUND? ftz? f32 bf16",
    "cvt ROUND ftz? sat? f16 f32",
    "cvt ROUND ftz? bf16 f32",
    "cvt rn|rz relu? satfinite? f16|bf16|f16x2|bf16x2|tf32 f32",
    "cvt rna satfinite? tf32 f32",
    "cvt rn satfinite relu? e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2 f32",
    "cvt rn satfinite relu? e4m3x2|e5m2x2|e2m1x2 f16x2",
    "cvt rn relu? f16x2 e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2",
    "cvt@9.1 rn satfinite relu? e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2 f16x2|bf16x2",
    "cvt@9.2 rn satfinite? relu? bf16x2 e4m3x2|e5m2x2|e2m1x2|e2m3x2|e3m2x2",
    "cvt rz|rp satfinite? ue8m0x2 f32|bf16x2",
    "cvt rn bf16x2 ue8m0x2",
    "cvt.pack sat u16|s16 s32",
    "cvt.pack sat u8|s8 s32 b32",
    // Warps (9.7.9.6, 9.7.13)
    "shfl sync up|down|bfly|idx b32",
    "vote sync all|any|uni pred",
    "vote sync ballot b32",
    "match sync any|all b32|b64",
    "activemask b32",
    "redux sync add|min|max u32|s32",
    "redux sync and|or|xor b32",
    "redux sync min|max abs? NaN? f32",
    // Atomics (9.7.13.5, 9.7.13.6)
    "atom|red SEM? SCOPE? WHERE? add HINT? u32|s32|u64|f32|f64",
    "atom|red SEM? SCOPE? WHERE? add noftz HINT? f16|f16x2|bf16|bf16x2",
    "atom|red SEM? SCOPE? WHERE? min|max HINT? LONG",
    "atom|red SEM? SCOPE? WHERE? inc|dec HINT? u32",
    "atom|red SEM? SCOPE? WHERE? and|or|xor HINT? b32|b64",
    "atom SEM? SCOPE? WHERE? exch HINT? b32|b64|b128",
    "atom SEM? SCOPE? WHERE? cas HINT? BITS|b128",
    "atom|red SEM? SCOPE? global? add HINT? v2|v4 f32",
    "atom|red SEM? SCOPE? global? add|min|max noftz HINT? v2|v4|v8 f16|bf16",
    "atom|red SEM? SCOPE? global? add|min|max noftz HINT? v2|v4 f16x2|bf16x2",
    // Barriers and fences (9.7.13)
    "bar cta? sync|arrive",
    "bar cta? red popc u32",
    "bar cta? red and|or pred",
    "barrier cta? sync|arrive aligned?",
    "barrier cta? red popc aligned? u32",
    "barrier cta? red and|or aligned? pred",
    "barrier.cluster arrive release|relaxed? aligned?",
    "barrier.cluster wait acquire? aligned?",
    "fence sc|acq_rel|acquire|release? SCOPE",
    "fence acquire sync_restrict::shared::cluster cluster",
    "fence release sync_restrict::shared::cta cluster",
    "fence mbarrier_init release cluster",
    "fence/0 proxy alias",
    "fence/0 proxy async global|shared::cta|shared::cluster?",
    "fence/0 proxy async::generic acquire sync_restrict::shared::cluster cluster",
    "fence/0 proxy async::generic release sync_restrict::shared::cta cluster",
    "fence.proxy.tensormap::generic/2 acquire SCOPE",
    "fence.proxy.tensormap::generic/0 release SCOPE",
    "membar cta|gl|sys",
    "membar proxy alias|async",
    "mbarrier.init|mbarrier.inval OWN? b64",
    "mbarrier.expect_tx|mbarrier.complete_tx SHARED? b64",
    "mbarrier.expect_tx|mbarrier.complete_tx relaxed cta|cluster SHARED? b64",
    "mbarrier.arrive|mbarrier.arrive_drop expect_tx? SHARED? b64",
    "mbarrier.arrive|mbarrier.arrive_drop expect_tx? release|relaxed cta|cluster SHARED? b64",
    "mbarrier.arrive|mbarrier.arrive_drop noComplete OWN? b64",
    "mbarrier.arrive|mbarrier.arrive_drop noComplete release cta OWN? b64",
    "mbarrier.test_wait|mbarrier.try_wait parity? OWN? b64",
    "mbarrier.test_wait|mbarrier.try_wait parity? acquire|relaxed cta|cluster OWN? b64",
    "mbarrier.pending_count b64",
    // Copies and caches (9.7.9.15 - 9.7.9.18, 9.7.9.25)
    "cp.async ca|cg OWN global L2::64B|L2::128B|L2::256B? HINT?",
    "cp.async.mbarrier.arrive noinc? OWN? b64",
    "prefetch global|local? L1|L2",
    "prefetch global? L2::evict_last|L2::evict_normal",
    "prefetch const|param|param::entry? tensormap",
    "prefetchu L1",
    "discard global? L2",
    "applypriority global? L2::evict_normal",
    "createpolicy fractional POLICY L2::evict_first|L2::evict_unchanged? b64",
    "createpolicy range global? POLICY L2::evict_first|L2::evict_unchanged? b64",
    "createpolicy cvt L2 b64",
    // Others (9.7.19)
    "setmaxnreg inc|dec sync aligned u32",
    "nanosleep u32",
    // Matrices (9.7.14.5)
    "ldmatrix|stmatrix sync aligned m8n8 x1|x2|x4 trans? OWN? b16",
    "ldmatrix sync aligned m16n16 x1|x2 trans OWN? b8",
    "stmatrix sync aligned m16n8 x1|x2|x4 trans OWN? b8",
    "movmatrix sync aligned m8n8 trans b16",
};

// What a word of capitals stands for.
constexpr std::pair<std::string_view, std::string_view> kShort[] = {
    {"INT", "u16|s16|u32|s32|u64|s64"},
    {"BYTE", "u8|s8|u16|s16|u32|s32|u64|s64"},
    {"LONG", "u32|s32|u64|s64"},
    {"BITS", "b16|b32|b64"},
    {"SIGNED", "s16|s32|s64"},
    {"SET", "u32|s32|f32|f16|bf16"},
    {"ROUND", "rn|rz|rm|rp"},
    {"INTEGRAL", "rni|rzi|rmi|rpi"},
    {"SAME", "eq|ne"},
    {"ORDER", "eq|ne|lt|le|gt|ge"},
    {"UNSIGNED", "lo|ls|hi|hs"},
    {"UNORDERED", "equ|neu|ltu|leu|gtu|geu|num|nan"},
    {"COMBINE", "and|or|xor"},
    {"SPACE", "const|global|local|param|param::entry|SHARED"},
    {"PARAM", "param|param::entry|param::func"},
    {"OWN", "shared|shared::cta"},
    {"SHARED", "OWN|shared::cluster"},
    {"WHERE", "global|SHARED"},
    {"SEM", "relaxed|acquire|release|acq_rel"},
    {"SCOPE", "cta|cluster|gpu|sys"},
    {"HINT", "L2::cache_hint"},
    {"VECTOR", "v2|v4|v8"},
    {"VALUE", "b8|BYTE|BITS|f32|f64|b128"},
    {"CACHED", "ca|cg|cs|lu|cv"},
    {"WRITTEN", "wb|cg|cs|wt"},
    {"L1EVICT",
     "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"},
    {"L2EVICT", "L2::evict_normal|L2::evict_first|L2::evict_last"},
    {"FETCH", "L2::64B|L2::128B|L2::256B"},
    {"SIGNAL", "mbarrier::complete_tx::bytes"},
    {"POLICY", "L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged"},
};

struct Group {
  std::vector<std::string_view> any;
  bool optional = false, types = false;
};
struct Form {
  std::vector<Group> groups;
  std::optional<size_t> operands;  // none: any number
  double since = 0;                // version of PTX
};

// Cuts the text at its first `end`; returns what was before it.
std::string_view cut(std::string_view* text, char end) {
  const size_t at = std::min(text->find(end), text->size());
  const std::string_view head = text->substr(0, at);
  text->remove_prefix(std::min(at + 1, text->size()));
  return head;
}

void expand(std::string_view words, std::vector<std::string_view>* out) {
  while (!words.empty()) {
    const std::string_view word = cut(&words, '|');
    const auto* found = std::find_if(std::begin(kShort), std::end(kShort),
                                     [&](const auto& entry) { return entry.first == word; });
    if (found == std::end(kShort)) {
      out->push_back(word);
    } else {
      expand(found->second, out);
    }
  }
}

using Forms = std::unordered_map<std::string_view, std::vector<Form>>;

Forms read_forms() {
  Forms forms;
  for (std::string_view line : kForms) {
    std::string_view names = cut(&line, ' ');
    Form form;
    if (const size_t at = names.find('@'); at != names.npos) {
      form.since = std::stod(std::string(names.substr(at + 1)));
      names = names.substr(0, at);
    }
    if (const size_t slash = names.find('/'); slash != names.npos) {
      form.operands = static_cast<size_t>(names[slash + 1] - '0');
      names = names.substr(0, slash);
    }
    while (!line.empty()) {
      std::string_view words = cut(&line, ' ');
      Group group;
      group.optional = words.back() == '?';
      if (group.optional) words.remove_suffix(1);
      expand(words, &group.any);
      group.types = static_cast<bool>(parse_type(group.any[0]));
      form.groups.push_back(std::move(group));
    }
    while (!names.empty()) forms[cut(&names, '|')].push_back(form);
  }
  return forms;
}

bool is(const Form& form, std::vector<std::string_view> modifiers) {
  for (const Group& group : form.groups) {
    const auto found =
        std::find_if(modifiers.begin(), modifiers.end(), [&](std::string_view modifier) {
          return group.types ? static_cast<bool>(parse_type(modifier))
                             : std::count(group.any.begin(), group.any.end(), modifier) != 0;
        });
    const bool taken =
        found != modifiers.end() && std::count(group.any.begin(), group.any.end(), *found) != 0;
    if (taken) {
      modifiers.erase(found);
    } else if (!group.optional) {
      return false;
    }
  }
  return modifiers.empty();
}

}  // namespace

bool has_form(const ptx::Statement& instruction, size_t prefix_parts, double version) {
  static const Forms forms = read_forms();
  const auto& parts = instruction.parts;
  std::string name(parts[0]);
  for (size_t i = 1; i < prefix_parts; ++i) name += "." + std::string(parts[i]);
  const auto found = forms.find(name);
  if (found == forms.end()) return true;
  std::vector<std::string_view> modifiers;
  for (size_t i = prefix_parts; i < parts.size(); ++i) {
    if (!parts[i].empty()) modifiers.push_back(parts[i]);
  }
  return std::any_of(found->second.begin(), found->second.end(), [&](const Form& form) {
    return form.since <= version &&
           form.operands.value_or(instruction.operands.size()) == instruction.operands.size() &&
           is(form, modifiers);
  });
}

}  // namespace bwgemm::emulator
