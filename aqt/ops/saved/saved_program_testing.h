#ifndef AQT_OPS_SAVED_SAVED_PROGRAM_TESTING_H_
#define AQT_OPS_SAVED_SAVED_PROGRAM_TESTING_H_

// Saved and loaded programs, for the tests of composite_proto.h. AQT_TEST_WRITE=FOLDER writes new files for testdata.
// Use it only for a new version of the format, under new names.

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aqt/core/array.h"
#include "aqt/graph/initial_stats.h"
#include "aqt/graph/interpret/eval.h"
#include "aqt/graph/op.h"
#include "aqt/graph/program.h"
#include "aqt/graph/saved/program_proto.h"
#include "aqt/graph/trace.h"
#include "aqt/graph/value.h"
#include "aqt/ops/saved/composite_proto.h"
#include "aqt/testing/same_bits.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aqt {

inline std::set<std::string> CompositesOf(const Program& program) {
  std::set<std::string> names;
  for (const Equation& eqn : program.eqns) {
    if (const auto* op = std::get_if<CompositeOp>(&eqn.op)) names.insert(op->impl->Name());
  }
  return names;
}

// A saved program is the same when it is loaded: its text, its operations, its bytes, its statistics before the first
// run.
inline void ExpectComesBack(const Program& program) {
  const auto text = [](const Program& p) { return ToText(p, {.source_lines = true}); };
  const absl::StatusOr<std::string> bytes = SaveProgram(program, ops::ProgramCodecs());
  ASSERT_THAT(bytes, ::aqt::testing::IsOk()) << program;
  const absl::StatusOr<Program> loaded = LoadProgram(*bytes, ops::ProgramCodecs());
  ASSERT_THAT(loaded, ::aqt::testing::IsOk()) << program;
  ASSERT_EQ(text(*loaded), text(program));
  for (size_t i = 0; i < program.eqns.size(); ++i) {
    ASSERT_TRUE(loaded->eqns[i].op == program.eqns[i].op) << OpName(program.eqns[i].op) << " in " << program;
  }
  ASSERT_EQ(*SaveProgram(*loaded, ops::ProgramCodecs()), *bytes);
  const SlotValues stats = InitialStats(program), stats_again = InitialStats(*loaded);
  ASSERT_EQ(stats.size(), stats_again.size());
  for (const auto& [slot, array] : stats) ASSERT_TRUE(SameBits(array, stats_again.at(slot))) << slot.ToString();
}

// A composite as a message, saved::SavedComposite.
template <class Message>
Message MessageOf(const Program& program, absl::string_view name) {
  Message message;
  for (const Equation& eqn : program.eqns) {
    const auto* op = std::get_if<CompositeOp>(&eqn.op);
    if (op == nullptr || op->impl->Name() != name) continue;
    EXPECT_TRUE(message.ParseFromString(*ops::ProgramCodecs().at(std::string(name)).save(*op->impl)));
    return message;
  }
  ADD_FAILURE() << "there is no " << name;
  return message;
}

inline std::string ReadTestFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Files of every version of the format load forever, give the same results as before, and are saved again to the same
// bytes. testdata/<name>.aqtprog is a program without inputs that contains these composites. With AQT_TEST_WRITE it is
// the current result of `make`.
inline void ExpectOldFileLoads(const std::string& name, const std::set<std::string>& composites,
                               absl::StatusOr<Program> (*make)()) {
  if (const char* folder = std::getenv("AQT_TEST_WRITE"); folder != nullptr) {
    const absl::StatusOr<Program> now = make();
    ASSERT_THAT(now, ::aqt::testing::IsOk());
    const std::vector<Array> results = *Eval(*now, {});
    const absl::StatusOr<Program> constants =
        Trace([&](absl::Span<const Value>) { return std::vector<Value>(results.begin(), results.end()); }, {});
    ASSERT_THAT(constants, ::aqt::testing::IsOk());
    std::ofstream(absl::StrCat(folder, "/", name, ".aqtprog"), std::ios::binary)
        << *SaveProgram(*now, ops::ProgramCodecs());
    std::ofstream(absl::StrCat(folder, "/", name, "_results.aqtprog"), std::ios::binary) << *SaveProgram(*constants);
  }
  const std::string path = absl::StrCat("aqt/ops/saved/testdata/", name);
  const std::string bytes = ReadTestFile(absl::StrCat(path, ".aqtprog"));
  const absl::StatusOr<Program> program = LoadProgram(bytes, ops::ProgramCodecs());
  const absl::StatusOr<Program> results = LoadProgram(ReadTestFile(absl::StrCat(path, "_results.aqtprog")));
  ASSERT_THAT(program, ::aqt::testing::IsOk());
  ASSERT_THAT(results, ::aqt::testing::IsOk());
  EXPECT_EQ(CompositesOf(*program), composites);
  EXPECT_EQ(*SaveProgram(*program, ops::ProgramCodecs()), bytes);
  const absl::StatusOr<std::vector<Array>> got = Eval(*program, {}), want = Eval(*results, {});
  ASSERT_THAT(got, ::aqt::testing::IsOk());
  ASSERT_THAT(want, ::aqt::testing::IsOk());
  ASSERT_EQ(got->size(), want->size());
  for (size_t i = 0; i < got->size(); ++i) EXPECT_TRUE(SameBits((*got)[i], (*want)[i])) << "output " << i;
}

}  // namespace aqt

#endif  // AQT_OPS_SAVED_SAVED_PROGRAM_TESTING_H_
