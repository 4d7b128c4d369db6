// Constant expressions and initialisers: what they are worth, and what is refused.
#include "emulator/tests/machine_run.h"

using namespace bwgemm::emulator;
using namespace bwgemm::emulator::testing;

namespace {

struct Worth {
  const char* expression;
  int64_t value;
};

TEST(integer_expressions) {
  const Worth cases[] = {
      {"1<<3", 8},
      {"(1<<3)+5", 13},
      {"1<<2+1", 8},
      {"-5>>1", -3},
      {"(.s64)(-1)>>60", -1},
      {"(.u64)(-1)>>60", 15},
      {"0xFFFFFFFFFFFFFFFF>>60", 15},
      {"1<<64", 0},
      {"-1>>64", -1},
      {"3>2", 1},
      {"-1<1", 1},
      {"-1<1U", 0},
      {"2<=2", 1},
      {"1>=2", 0},
      {"5==5", 1},
      {"5!=5", 0},
      {"3>2?7:9", 7},
      {"0?7:1?8:9", 8},
      {"!0", 1},
      {"!5", 0},
      {"~5&7", 2},
      {"+5", 5},
      {"-(3+4)", -7},
      {"0b1011|4", 15},
      {"1|2==2", 1},
      {"6^3", 5},
      {"7&&0", 0},
      {"7||0", 1},
      {"-7/2", -3},
      {"-7 % 3", -1},
      {"7 % -3", 1},
      {"(1<<63)/-1", INT64_MIN},
      {"18446744073709551615/2", INT64_MAX},
      {"2+3*4-5", 9},
      {"WARP_SZ", 32},
      {"WARP_SZ*2", 64},
      {"1.5>1.0", 1},
      {"18446744073709551615", -1},
      {"070+0xAU", 66},
  };
  for (const Worth& c : cases) {
    Run run;
    run(std::string("mov.u64 %d1, ") + c.expression + ";\nst.global.u64 [%out], %d1;").ok();
    int64_t value;
    std::memcpy(&value, run.out, sizeof value);
    if (value != c.value)
      fail(__FILE__, __LINE__, std::string(c.expression) + " is " + std::to_string(value));
  }
}

TEST(floating_point_expressions) {
  const std::pair<const char*, float> cases[] = {{"1.5+2.5", 4},
                                                 {"1.5*2.0-1.0", 2},
                                                 {"-(1.0/4.0)", -0.25f},
                                                 {"-0f3FC00000", -1.5f},
                                                 {"0f3F800000", 1.0f}};
  for (const auto& [expression, value] : cases) {
    Run run;
    run(std::string("mov.f32 %f1, ") + expression + ";\nst.global.f32 [%out], %f1;").ok();
    float got;
    std::memcpy(&got, run.out, sizeof got);
    CHECK_EQ(got, value);
  }
}

TEST(offsets_of_addresses) {
  for (const char* address : {"%out+2*4", "%out+(1<<3)", "%out+4+4", "%out+1<<3", "%out+16-8",
                              "%out+-8+16", "%out+WARP_SZ/4"}) {
    Run run;
    run(std::string("st.global.u32 [") + address + "], 5;").ok();
    CHECK_EQ(run.out[2], 5u);
  }
  Run run;
  run.declarations = ".shared .align 4 .b8 s[16];";
  run("st.shared.u32 [s+4*2], 7;\nmov.u32 %r1, s+4*2;\nbar.warp.sync -1;\nld.shared.u32 %r2, "
      "[%r1];\nadd.u64 %d1, "
      "%out, 8;\nst.global.u32 [%d1-4*2], %r2;")
      .ok();
  CHECK_EQ(run.out[0], 7u);
}

TEST(initialisers) {
  Run run;
  // A packed structure of a byte and a pointer, as compilers write it.
  std::string masks;
  for (int byte = 0; byte < 8; ++byte)
    masks += ", 0xFF" + std::string(static_cast<size_t>(2 * byte), '0') + "(generic(x)+8)";
  run.declarations =
      ".global .align 4 .u32 x[4] = {1, 1<<1, 3*(1+1), -4};\n.global .align 1 .b8 "
      "packed[9] = {7" +
      masks + "};\n.global .align 8 .u64 at = x+2*4;\n";
  run("ld.global.u8 %r1, [packed];\nst.global.u32 [%out], %r1;\nmov.u64 %d1, 0;\nmov.u64 %d2, "
      "packed;\nmov.u32 %r2, 0;\nL:\nadd.u64 %d2, %d2, 1;\nld.global.u8 %d3, [%d2];\nshl.b64 %d3, "
      "%d3, %r2;\nor.b64 %d1, %d1, %d3;\nadd.u32 %r2, %r2, 8;\nsetp.lt.u32 %p1, %r2, 64;\n@%p1 bra "
      "L;\nld.global.u32 %r3, [%d1];\nst.global.u32 [%out+4], %r3;\nld.global.u64 %d4, [at];\n"
      "ld.global.s32 %r4, [%d4+4];\nst.global.u32 [%out+8], %r4;\nld.global.u32 %r5, [x+4];\n"
      "st.global.u32 [%out+12], %r5;")
      .ok();
  CHECK_EQ(run.out[0], 7u);
  CHECK_EQ(run.out[1], 6u);
  CHECK_EQ(static_cast<int>(run.out[2]), -4);
  CHECK_EQ(run.out[3], 2u);
}

TEST(refusals) {
  const std::pair<std::string, const char*> cases[] = {
      {"mov.u32 %r1, 7/0;", "line 14: division by zero in a constant expression"},
      {"mov.u32 %r1, 7 % (1-1);", "division by zero in a constant expression"},
      {"mov.u64 %d1, 18446744073709551616;", "integer literal of more than 64 bits"},
      {"mov.u64 %d1, 0x10000000000000000;", "integer literal of more than 64 bits"},
      {"mov.u32 %r1, (.s32)5;", "a constant can be cast to .s64 and .u64 alone"},
      {"mov.u32 %r1, (.s64)1.5;", "a cast needs an integer"},
      {"mov.u32 %r1, 5+1.0;", "an integer and a floating-point number in one constant expression"},
      {"mov.u32 %r1, 1.0|2.0;", "'|' needs integers"},
      {"mov.u32 %r1, ~1.0;", "'~' needs an integer"},
      {"mov.u32 %r1, !1.0;", "'!' needs an integer"},
      {"mov.u32 %r1, 1.0?2:3;", "'?' needs an integer"},
      {"mov.u32 %r1, 1?2;", "expected ':' before ';'"},
      {"mov.u32 %r1, 1+%r2;", "unexpected '%r2' in a constant expression"},
      {"mov.u32 %r1, (1+2;", "expected ')' before ';'"},
      {"mov.u32 %r1, " + std::string(100, '(') + ";", "constant expression nested too deeply"},
      {"ld.global.u32 %r1, [%out+%r2];", "expected an offset before '%r2'"},
      {"ld.global.u32 %r1, [%out+1.5];", "expected an offset, which is an integer"},
  };
  for (const auto& [body, message] : cases) {
    Run run;
    run(body).fails(ErrorKind::kParse, message);
  }
  const std::pair<const char*, const char*> declarations[] = {
      {".global .u8 y = 0xF0F(x);", "a mask of an address must be one byte of ones"},
      {".global .u16 y = 0xFF(x);", "a masked address needs an 8-bit element"},
      {".global .u64 y = x+z;", "expected an offset before 'z'"},
  };
  for (const auto& [text, message] : declarations) {
    Run run;
    run.declarations = std::string(".global .u32 x;\n") + text;
    run("").fails(ErrorKind::kParse, message);
  }
}

}  // namespace

int main(int argc, char** argv) { return run_all(argc, argv); }
