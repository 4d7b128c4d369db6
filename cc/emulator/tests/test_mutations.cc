// Damaged PTX must end in an error or run to its end, never crash or hang: 2,000 mutated texts are
// parsed, decoded and launched. Meant for the sanitizer build. PTX files given as arguments are
// used instead of the built-in text.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "emulator/tensor/tensor_map.h"
#include "emulator/tests/tensor_kernel.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

std::vector<std::string> corpus;

const char* kBody =
    "@%p0 mbarrier.init.shared::cta.b64 [%r4], 1;\n@%p0 mbarrier.init.shared::cta.b64 [%r4+8], "
    "128;\n@%p0 mbarrier.init.shared::cta.b64 [%r4+16], "
    "1;\nfence.mbarrier_init.release.cluster;\nbar.sync 0;\n"
    "ld.param.u64 %d1, [out];\nmov.b64 %d3, map;\ncvta.param.u64 %d3, %d3;\nprefetch.tensormap "
    "[%d3];\n"
    "setp.ne.u32 %p1, %r1, 0;\n@%p1 bra REST;\nelect.sync %r6|%p2, -1;\n@!%p2 bra "
    "JOIN;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4], 2048;\n"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d1], 1024, [%r4];\n"
    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
    "[%r3+1024], [%d3, {%r0, %r1}], [%r4], %d1;\nJOIN:\nbar.warp.sync -1;\n"
    "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], "
    "64;\ntcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\nREST:\nbar.sync 0;\n"
    "WAIT:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 0;\n@!%p3 bra "
    "WAIT;\nbar.sync 0;\nld.shared.u32 %r7, [%r5];\n"
    "mov.b64 %d4, 0x4000404000010040;\nmov.u32 %r9, 0x8100490;\n@%p0 "
    "tcgen05.mma.cta_group::1.kind::f16 [%r7], %d4, %d4, %r9, %p1;\n"
    "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 "
    "[%r4];\nWAIT2:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4], 1;\n@!%p3 bra WAIT2;\n"
    "shl.b32 %r8, %r1, 21;\nadd.u32 %r8, %r7, %r8;\ntcgen05.ld.sync.aligned.32x32b.x4.b32 {%r10, "
    "%r11, %r12, %r13}, [%r8];\ntcgen05.wait::ld.sync.aligned;\n"
    "shfl.sync.bfly.b32 %r14, %r10, 16, 31, -1;\nvote.sync.ballot.b32 %r15, %p0, "
    "-1;\nredux.sync.add.s32 %r16, %r0, -1;\nmatch.any.sync.b32 %r17, %r0, -1;\n"
    "mad.lo.u32 %r18, %r0, 16, %r3;\nst.shared.v4.b32 [%r18], {%r10, %r11, %r12, "
    "%r13};\nfence.proxy.async.shared::cta;\nbar.sync 1, 128;\n"
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, "
    "[%r18];\nstmatrix.sync.aligned.m8n8.x2.shared.b16 [%r18], {%r20, %r21};\n"
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r20, %r21, %r22, "
    "%r23}, {%r20, %r21}, {%f4, %f5, %f6, %f7};\n"
    "cvt.rn.bf16x2.f32 %r24, %f0, %f1;\nfma.rn.f32 %f8, %f0, %f1, %f2;\nprmt.b32 %r25, %r24, %r23, "
    "0x5410;\ncvt.rzi.s32.f32 %r26, %f8;\ndiv.s32 %r27, %r26, %r25;\n"
    "mul.wide.u32 %d5, %r0, 4;\nadd.s64 %d5, %d5, %d1;\nst.global.u32 [%d5], "
    "%r24;\natom.global.add.u32 %r28, [%d1], 1;\nred.global.add.noftz.bf16x2 [%d5], %r24;\n"
    "ld.global.nc.v2.u32 {%r29, %r30}, [%d1];\ncp.async.ca.shared.global [%r18], [%d1], "
    "16;\ncp.async.commit_group;\ncp.async.wait_group 0;\n"
    "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3+8192], 512;\n@%p0 "
    "cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group.read 0;\n"
    "{\n.param .b32 x;\n.param .b32 y;\nst.param.b32 [x], %r0;\ncall.uni (y), twice, "
    "(x);\nld.param.b32 %r31, [y];\n}\nmov.u64 %d6, table;\nld.global.u32 %r32, [%d6+4];\n"
    "and.b32 %r33, %r0, 1;\nbrx.idx %r33, TARGETS;\nA:\nmapa.shared::cluster.u32 %r34, %r3, "
    "0;\nB:\nTARGETS: .branchtargets A, "
    "B;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r4+16], 16;\n@%p0 "
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r3], "
    "[%r4+16];\n"
    "WAIT3:\nmbarrier.try_wait.parity.shared::cta.b64 %p3, [%r4+16], 0;\n@!%p3 bra WAIT3;\n@%p1 "
    "bra END;\ntcgen05.dealloc.cta_group::1.sync.aligned.b32 %r7, 64;\nEND:\n";

// No rule ends a launch: all of the text runs, races and all.
LaunchConfig warnings_only(uint64_t seed) {
  LaunchConfig config;
  config.seed = seed;
  for (size_t i = 0; i < kRuleCount; ++i)
    config.rules.set(static_cast<Rule>(i), Severity::kWarning);
  return config;
}

std::string builtin() {
  std::string text = kernel(".param .u64 out, .param .align 64 .b8 map[128]", kBody, 16384);
  const std::string functions =
      ".global .align 4 .u32 table[4] = {1, 2, 3, 4};\n.func (.param .b32 r) twice(.param .b32 a) "
      "{\n.reg .b32 %x<3>;\nld.param.b32 %x1, [a];\nadd.u32 %x2, %x1, %x1;\n"
      "st.param.b32 [r], %x2;\nret;\n}\n";
  text.insert(text.find(".visible"), functions);
  return text;
}

// The buffer's address, and a map of 32 x 16 words over it for kernels that have room for one.
std::vector<uint8_t> parameters(uint32_t bytes, uint64_t address) {
  std::vector<uint8_t> params(bytes, 0);
  if (bytes >= 8) std::memcpy(params.data(), &address, 8);
  TensorMap map;
  map.type = TensorMapType::kU32;
  map.rank = 2;
  map.address = address;
  map.dims = {32, 16};
  map.strides = {4, 128};
  map.box = {32, 8};
  map.element_strides = {1, 1};
  CHECK_TEXT(validate(map), "");
  if (bytes >= 192) encode(map, params.data() + 64);
  return params;
}

// One random edit: of a character, a line, a word or a number.
std::string mutate(const std::string& text, std::mt19937& random) {
  std::string out = text;
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto line_at = [&](size_t at, size_t* begin, size_t* end) {
    *begin = out.rfind('\n', at);
    *begin = *begin == std::string::npos ? 0 : *begin + 1;
    *end = out.find('\n', at);
    *end = *end == std::string::npos ? out.size() : *end + 1;
  };
  const size_t at = below(out.size());
  size_t begin, end;
  switch (below(9)) {
    case 0:
      out[at] = static_cast<char>(below(256));
      break;
    case 1:
      out.erase(at, 1 + below(3));
      break;
    case 2:
      out.insert(at, 1, ".,;:{}[]()%@!|_-+0x9a\"\n"[below(24)]);
      break;
    case 3:
      line_at(at, &begin, &end);
      out.erase(begin, end - begin);
      break;
    case 4: {
      line_at(at, &begin, &end);
      const std::string line = out.substr(begin, end - begin);
      line_at(below(out.size()), &begin, &end);
      out.insert(begin, line);
      break;
    }
    case 5:
      out.resize(at);
      break;
    case 6: {  // a number becomes another one
      const size_t digit = out.find_first_of("0123456789", at);
      if (digit == std::string::npos) break;
      size_t stop = digit;
      while (stop < out.size() && std::isalnum(static_cast<unsigned char>(out[stop]))) ++stop;
      static const char* const kNumbers[] = {"0",
                                             "1",
                                             "-1",
                                             "7",
                                             "32",
                                             "65536",
                                             "4294967295",
                                             "18446744073709551615",
                                             "0x80000000",
                                             "0f7F800000",
                                             "99999999999999999999"};
      out.replace(digit, stop - digit, kNumbers[below(11)]);
      break;
    }
    case 7: {  // a register of one kind becomes another
      const size_t percent = out.find('%', at);
      if (percent == std::string::npos || percent + 1 >= out.size()) break;
      out[percent + 1] = "rdpfh"[below(5)];
      break;
    }
    default: {  // a modifier moves
      const size_t dot = out.find('.', at);
      if (dot == std::string::npos) break;
      size_t stop = dot + 1;
      while (stop < out.size() && (std::isalnum(static_cast<unsigned char>(out[stop])) ||
                                   out[stop] == ':' || out[stop] == '_'))
        ++stop;
      const std::string part = out.substr(dot, stop - dot);
      out.erase(dot, stop - dot);
      const size_t other = out.find('.', below(out.size()));
      if (other != std::string::npos) out.insert(other, part);
    }
  }
  return out;
}

TEST(mutated_texts_never_crash) {
  std::mt19937 random(20240);
  int parsed = 0, ran = 0, failed = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string text = corpus[static_cast<size_t>(i) % corpus.size()];
    for (size_t edits = 1 + random() % 3; edits > 0 && !text.empty(); --edits)
      text = mutate(text, random);
    try {
      const auto module = Module::load(text);
      ++parsed;
      for (const std::string& name : module->kernels()) {
        const Kernel& kernel = module->kernel(name);
        GlobalMemory memory;
        Buffer buffer(8192);
        memory.add(buffer.data(), buffer.size(), true, "out");
        LaunchConfig config = warnings_only(random());
        config.step_limit = 20000;
        const LaunchResult result =
            launch(memory, *module, name, parameters(kernel.param_bytes, buffer.address()),
                   {2, 1, 1}, {128, 1, 1}, {1, 1, 1}, i % 2 == 0 ? 0 : 32768, config);
        ++ran;
        failed += !result.ok;
        CHECK(result.ok || !result.error.empty());
      }
    } catch (const Error& error) {
      CHECK(error.what()[0] != '\0');
    }
  }
  std::printf("%d parsed, %d kernels launched, %d of them with an error\n", parsed, ran, failed);
  CHECK(parsed > 100);
  CHECK(failed > 50);
}

// Otherwise the mutations would only exercise its beginning.
TEST(the_built_in_text_runs) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const auto module = Module::load(builtin());
    GlobalMemory memory;
    Buffer buffer(8192);
    memory.add(buffer.data(), buffer.size(), true, "out");
    const LaunchConfig config = warnings_only(seed);
    const LaunchResult result =
        launch(memory, *module, "k", parameters(module->kernel("k").param_bytes, buffer.address()),
               {2, 1, 1}, {128, 1, 1}, {1, 1, 1}, 0, config);
    CHECK_TEXT(result.error, "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i]);
    std::stringstream text;
    text << file.rdbuf();
    corpus.push_back(text.str());
  }
  if (corpus.empty()) corpus.push_back(builtin());
  return run_all(1, argv);
}
