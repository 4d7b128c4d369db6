// A few lines of test harness: each TEST registers itself, main runs them all and counts failures.
#pragma once

#include <cstdio>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace bwgemm::emulator::testing {

struct Registry {
  std::vector<std::pair<const char*, void (*)()>> tests;
  int failures = 0;
  static Registry& get() {
    static Registry registry;
    return registry;
  }
};

struct Register {
  Register(const char* name, void (*body)()) { Registry::get().tests.push_back({name, body}); }
};

inline void fail(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  ++Registry::get().failures;
}

template <class A, class B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << text << ": " << a << " is not " << b;
  fail(file, line, message.str());
}

inline void check_contains(const std::string& text, const std::string& part, const char* file,
                           int line) {
  if (part.empty() ? !text.empty() : text.find(part) == std::string::npos) {
    fail(file, line, "\"" + text + "\" does not contain \"" + part + "\"");
  }
}

inline int run_all(int argc, char** argv) {
  Registry& registry = Registry::get();
  int ran = 0;
  for (const auto& [name, body] : registry.tests) {
    if (argc > 1 && std::string(name).find(argv[1]) == std::string::npos) continue;
    const int before = registry.failures;
    body();
    ++ran;
    if (registry.failures != before) std::fprintf(stderr, "FAILED %s\n", name);
  }
  std::printf("%d tests, %d failed checks\n", ran, registry.failures);
  return ran == 0 || registry.failures != 0;
}

}  // namespace bwgemm::emulator::testing

#define TEST(name)                                                                   \
  static void test_##name();                                                         \
  static ::bwgemm::emulator::testing::Register register_##name(#name, &test_##name); \
  static void test_##name()
#define CHECK(condition) \
  if (!(condition)) ::bwgemm::emulator::testing::fail(__FILE__, __LINE__, "not true: " #condition)
#define CHECK_EQ(a, b) \
  ::bwgemm::emulator::testing::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)
// With an empty `part`: the text must be empty.
#define CHECK_TEXT(text, part) \
  ::bwgemm::emulator::testing::check_contains((text), (part), __FILE__, __LINE__)
