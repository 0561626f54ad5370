#include "examples/digits/command.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/file.h"
#include "aqt/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace digits {
namespace {

using ::aqt::testing::IsOk;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const aqt::io::FileSystem& Fs() { return aqt::io::LocalFileSystem(); }

struct Result {
  int code;
  std::string out, err;
};

Result Digits(const std::vector<std::string>& args) {
  std::ostringstream out, err;
  const int code = DigitsMain(args, Fs(), out, err);
  return {code, out.str(), err.str()};
}

std::string Folder(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", name); }

// A small and short training.
std::vector<std::string> Small(const std::string& config, const std::string& folder,
                               std::vector<std::string> more = {}) {
  std::vector<std::string> args = {"--config", config, "--out", folder, "--hidden", "16,8", "--epochs", "2"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::string FileOf(const std::string& path) {
  absl::StatusOr<std::string> bytes = aqt::io::ReadFile(Fs(), path, 1 << 20);
  EXPECT_THAT(bytes, IsOk());
  return bytes.ok() ? *bytes : "";
}

TEST(Digits, EveryConfigurationFromTrainingToServing) {
  const Result result = Digits(Small("float,int8,int4,mixed", Folder("all")));
  ASSERT_EQ(result.code, 0) << result.err;
  int served = 0;
  for (size_t at = 0; (at = result.out.find("logits equal to the bit", at)) != std::string::npos; ++at) ++served;
  EXPECT_EQ(served, 4) << result.out;
  for (const char* part :
       {"rule \"int8\"", "rule \"hidden layers w4a8\"", "stays as it is", "step 88/88  loss ",
        "6 parameters (4.9 KiB) -> 6 frozen tensors and 3 parameters (1.5 KiB)", "config  accuracy"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  EXPECT_THAT(FileOf(Folder("all/loss.svg")), AllOf(HasSubstr(">float<"), HasSubstr(">mixed<"), HasSubstr("</svg>")));
  const Result serve = Digits({"--serve", Folder("all/int8/served.safetensors")});
  ASSERT_EQ(serve.code, 0) << serve.err;
  EXPECT_THAT(serve.out, HasSubstr("64-16-8-10, accuracy on the 360 test rows: 0."));
}

// The files are the same whether a training runs in one go, runs again, or stops and resumes; on any number of threads.
TEST(Digits, ResumedTrainingWritesTheSameFiles) {
  ASSERT_EQ(Digits(Small("int8", Folder("whole"))).code, 0);
  ASSERT_EQ(Digits(Small("int8", Folder("again"), {"--threads", "2"})).code, 0);
  ASSERT_EQ(Digits(Small("int8", Folder("parts"), {"--steps", "17"})).code, 0);
  EXPECT_NE(FileOf(Folder("parts/int8/state.safetensors")), FileOf(Folder("whole/int8/state.safetensors")));
  // Stops within an epoch and continues past its end.
  ASSERT_EQ(Digits(Small("int8", Folder("parts"), {"--resume", "--steps", "50"})).code, 0);
  const Result last = Digits(Small("int8", Folder("parts"), {"--resume"}));
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_THAT(last.out, HasSubstr("resume  step 50, from "));
  for (const char* file : {"state.safetensors", "served.safetensors"}) {
    const std::string whole = FileOf(Folder(absl::StrCat("whole/int8/", file)));
    EXPECT_EQ(FileOf(Folder(absl::StrCat("again/int8/", file))), whole) << file;
    EXPECT_EQ(FileOf(Folder(absl::StrCat("parts/int8/", file))), whole) << file;
  }
}

// Quantizing after a float training takes the same steps on other parameters.
TEST(Digits, PostTrainingQuantization) {
  ASSERT_EQ(Digits(Small("float", Folder("f"))).code, 0);
  const Result ptq = Digits(Small("int8", Folder("ptq"), {"--ptq"}));
  ASSERT_EQ(ptq.code, 0) << ptq.err;
  EXPECT_THAT(ptq.out,
              AllOf(HasSubstr("trained in float"), HasSubstr("6 frozen tensors"), HasSubstr("equal to the bit")));
  EXPECT_EQ(FileOf(Folder("ptq/int8/state.safetensors")), FileOf(Folder("f/float/state.safetensors")));
  EXPECT_NE(FileOf(Folder("ptq/int8/served.safetensors")), FileOf(Folder("f/float/served.safetensors")));
  EXPECT_THAT(FileOf(Folder("ptq/loss.svg")), HasSubstr(">Digits: training in float<"));
}

TEST(Digits, ShowsProgramsOnRequest) {
  EXPECT_THAT(Digits(Small("int8", Folder("none"), {"--steps", "1"})).out, Not(HasSubstr("aqt_dot_general(")));
  const std::string text = Digits(Small("int8", Folder("short"), {"--steps", "1", "--programs", "short"})).out;
  for (const char* part : {"in %1: f32[64,16] param \"mlp/fc1/kernel\"", "= dot_general(", "= aqt_dot_general_bwd(",
                           "in %4: s8[64,16] frozen \"mlp/fc1/qrhs/value\"", "other equations"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(Digits(Small("int8", Folder("full"), {"--steps", "1", "--programs", "full"})).out,
              HasSubstr("= select("));
}

TEST(Digits, CrossValidation) {
  // float, the reference, runs once, whether it is requested or not.
  for (const char* configs : {"int8", "int8,float"}) {
    const Result result =
        Digits({"--config", configs, "--out", Folder("cv"), "--hidden", "8", "--epochs", "1", "--cross-validate", "2"});
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out,
                ::testing::MatchesRegex("instruction set: .*\n2 folds of 1797 rows, 64-8-10, 1 epochs of batch 32\n"
                                        "  float   0.* mean 0.*, deviation 0.* s\n"
                                        "  int8    0.* mean 0.*, deviation 0.* points, .* s\nloss curves: .*\n"));
    EXPECT_THAT(FileOf(Folder("cv/loss.svg")), HasSubstr("mean of 2 folds"));
  }
}

TEST(Digits, Errors) {
  const auto fails = [](std::vector<std::string> args, int code, const std::vector<std::string>& parts) {
    const Result result = Digits(args);
    EXPECT_EQ(result.code, code) << result.out << result.err;
    for (const std::string& part : parts) EXPECT_THAT(result.err, HasSubstr(part));
  };
  fails({"--cofnig", "int8"}, 2, {"--cofnig", "--help"});
  fails({"--programs", "long"}, 2, {"--programs", "long"});
  fails({"--serve", "x", "--ptq"}, 2, {"--serve", "--ptq"});
  fails({"--cross-validate", "0"}, 2, {"--cross-validate"});
  fails({"--cross-validate", "1", "--out", Folder("e")}, 2, {"folds = 1, expected 2 to 1797"});
  fails({"--epochs", "1", "--epochs", "2"}, 2, {"--epochs"});
  fails({"--config", "int8,examples/digits/configs/int8.textproto"}, 2, {"int8.textproto have one name"});
  fails(Small("int9", Folder("e")), 2,
        {"--config int9", "examples/digits/configs/int9.textproto", "float, int8, int4 and mixed"});
  fails(Small("int8", Folder("e"), {"--batch", "2000"}), 2, {"int8: batch = 2000", "1437 rows"});
  fails(Small("int8", Folder("e"), {"--momentum", "1"}), 2, {"int8: sgd: ", "momentum = 1"});
  fails(Small("int8", Folder("never"), {"--resume"}), 4, {"never/int8/state.safetensors"});
  fails(Small("int8", "/proc/no/such"), 4, {"/proc/no/such"});
  fails({"--serve", Folder("nothing")}, 4, {"nothing"});
  fails({"--data", Folder("nothing")}, 4, {"nothing: cannot be opened"});
  // A rule without matches, and one that is illegal for its match.
  const auto config = [](const std::string& text) {
    EXPECT_THAT(aqt::io::WriteFile(Fs(), Folder("c.textproto"), text, {.overwrite = true}), IsOk());
    return Small(Folder("c.textproto"), Folder("e"));
  };
  fails(config("schema: 1 rules { scope: 'mpl/.*' keep: true }"), 2,
        {"c: inject: hit nothing: rule 1", "dot_general [mlp/fc1] (f32[32,64], f32[64,16]): no rule"});
  fails(config("schema: 1\nrules { scoop: 'x' }"), 2, {"c.textproto:2:", "scoop"});
  fails(config("schema: 1 rules { dot_general { base: 'fully_quantized_int8' fwd { rhs { quantizer {"
               " calib_shared_axes { axes: 2 } } } } } }"),
        2, {"aqt_dot_general [mlp/fc1]", "fwd.rhs", "f32[32,64], f32[64,16]", "classifier.cc:"});
  // Refused before any training: freezing would need missing statistics.
  for (const char* preset : {"int8_static", "fp8_delayed"}) {
    fails(config(absl::StrCat("schema: 1 rules { dot_general { base: '", preset, "' } }")), 2,
          {"c.textproto: rule 1: fwd.lhs has a calibration with state", "keeps no statistics", "abs_max"});
  }
  fails(config("schema: 1 rules { name: 'r' dot_general { base: 'fully_quantized_int8' clear: "
               "'drhs.lhs.quantizer.abs_max' drhs { lhs { quantizer { mean_of_abs_max {} } } } } }"),
        2, {"rule \"r\": drhs.lhs has a calibration with state"});
  // A state of another model.
  ASSERT_EQ(Digits(Small("int8", Folder("s"), {"--steps", "1"})).code, 0);
  fails({"--config", "int8", "--out", Folder("s"), "--hidden", "16,9", "--resume"}, 4,
        {"another program", "\"mlp/fc2/kernel\" is f32[16,8]", "expected f32[16,9]"});
  fails(Small("int8", Folder("s"), {"--resume", "--seed", "5"}), 4, {"other settings: seed was \"", " and is \"5\""});
  fails(Small("int8", Folder("s"), {"--resume", "--ptq"}), 4, {"other settings: rules is not the same text"});
  fails(Small("int8", Folder("s"), {"--resume", "--steps", "0"}), 2, {"is at step 1", "give more --epochs or --steps"});
}

TEST(Digits, Help) {
  const Result help = Digits({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* part : {"--config", "--ptq", "--cross-validate", "[320,256]", "Exit codes", "Examples"}) {
    EXPECT_THAT(help.out, HasSubstr(part));
  }
}

}  // namespace
}  // namespace digits
