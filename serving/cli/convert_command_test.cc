#include "serving/cli/convert_command.h"

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aqt/gguf/gguf_writer.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/cli/command.h"
#include "serving/cli/command_test_fixture.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ConvertTest : public CommandTest {
 protected:
  ConvertTest() : CommandTest(ConvertMain) {}
};

TEST_F(ConvertTest, ConvertsLikeTheFullProgram) {
  EXPECT_EQ(Run({"inspect", "in"}), 0);
  EXPECT_THAT(out_, HasSubstr("in: 6 tensors"));
  EXPECT_EQ(Run({"plan", "in", "--preset", "w8a8_dynamic"}), 0);
  EXPECT_THAT(out_, HasSubstr("6 tensors, 2 to be quantized"));
  EXPECT_EQ(Run({"explain", "in", "lm_head", "--preset", "w8a16"}), 0);
  EXPECT_THAT(out_, HasSubstr("=> carried over as it is"));
  const std::vector<std::string> convert = {"convert", "in", "out", "--preset", "w8a8_dynamic", "--progress", "never"};
  EXPECT_EQ(Run(convert), 0) << err_;
  EXPECT_EQ(Run({"verify", "in", "out", "--min-snr", "30"}), 0) << err_;
  EXPECT_EQ(Run({"verify", "in", "out", "--min-snr", "60"}), 1);
  const std::string converted = ReadText("out/model.safetensors");
  std::ostringstream out, err;
  ASSERT_EQ(AqtMain({"convert", "in", "full", "--preset", "w8a8_dynamic"}, io::LocalFileSystem(), {out, err}), 0);
  EXPECT_EQ(ReadText("full/model.safetensors"), converted);
}

TEST_F(ConvertTest, ThePresetsAreListedAndPrinted) {
  EXPECT_EQ(Run({"plan", "--help"}), 0);
  EXPECT_THAT(out_, HasSubstr("w8a8_dynamic"));
  EXPECT_EQ(Run({"plan", "--preset", "w8a8_dynamic", "--print-effective-config"}), 0);
  EXPECT_THAT(out_, HasSubstr("dynamic_per_token"));
}

// Whatever follows the command: its arguments are not known here.
TEST_F(ConvertTest, CommandsOfTheFullProgramAreRefusedByName) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{"config"},
                                             {"config", "inject"},
                                             {"config", "--help"},
                                             {"program", "model.aqtprog", "--draw", "svg"},
                                             {"program", "--depth="},
                                             {"run", "model/", "--text", "x"},
                                             {"bench", "model/"},
                                             {"serve", "model/"}}) {
    const std::string expected =
        absl::StrCat("error: the command ", args[0], " is only in //serving:aqt; this program has ",
                     "inspect, plan, convert, dequantize, verify, diff, explain, completion, man\n");
    ExpectError(args, 5, expected);
    EXPECT_EQ(err_, expected) << "one line";
  }
}

TEST_F(ConvertTest, OtherMistakesAreThoseOfTheFullProgram) {
  EXPECT_EQ(Run({}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("subcommand"), HasSubstr("Usage: aqt")));
  ExpectError({"frobnicate"}, 2, "there is no command frobnicate; `aqt --help` lists them");
  ExpectError({"inspect", "in", "program"}, 2, "program");
  ExpectError({"convert", "in", "--preset", "w8a16"}, 2, "OUT is missing");
  ExpectError({"inspect", "gone"}, 4, "gone");
}

TEST_F(ConvertTest, HelpListsOnlyItsCommands) {
  EXPECT_EQ(Run({"--help"}), 0);
  const std::string help = out_;
  EXPECT_THAT(
      help, AllOf(HasSubstr("Exit codes"), HasSubstr("\n\nOnly in //serving:aqt: config, program, run, bench, serve\n"),
                  Not(HasSubstr("\n  config")), Not(HasSubstr("\n  program"))));
  for (const char* command : {"inspect", "plan", "convert", "verify", "explain"}) {
    EXPECT_THAT(help, HasSubstr(absl::StrCat("\n  ", command, " ")));
    // The same options as in the full program, with the same words.
    ASSERT_EQ(Run({command, "--help"}), 0);
    std::ostringstream out, err;
    ASSERT_EQ(AqtMain({command, "--help"}, io::LocalFileSystem(), {out, err}), 0);
    EXPECT_EQ(out_, out.str());
  }
  EXPECT_EQ(Run({"--version"}), 0);
  EXPECT_THAT(out_, HasSubstr("SIMD target: "));
}

TEST_F(ConvertTest, FromGgufToGguf) {
  const std::vector<gguf::GgufTensorSpec> tensors = {{"blk.0.ffn_up.weight", ggml::Type::kF32, {2, 32}}};
  auto writer = gguf::GgufWriter::Create(io::LocalFileSystem(), "in.gguf", {}, tensors).value();
  const std::vector<uint8_t> zeros(2 * 32 * sizeof(float));
  ASSERT_TRUE(writer->Write(0, 0, zeros).ok());
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(Run({"convert", "in.gguf", "out.gguf", "--preset", "gguf_q8_0", "--progress", "never"}), 0) << err_;
  EXPECT_EQ(out_, "out.gguf: 1 of 1 tensors changed, 256 B -> 68 B\n");
  ExpectError({"convert", "in.gguf", "out.gguf", "--preset", "gguf_q8_0"}, 4, "the output out.gguf exists; --force");
  EXPECT_EQ(Run({"convert", "in.gguf", "out.gguf", "--preset", "gguf_q8_0", "--force", "--json"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("\"num_quantized\": 1"), HasSubstr("\"new_bytes\": 68")));
  ExpectError({"convert", "out.gguf", "b.gguf", "--preset", "gguf_q4_0"}, 2, "--allow-requantize decodes");
  EXPECT_EQ(Run({"convert", "out.gguf", "b.gguf", "--preset", "gguf_q4_0", "--allow-requantize"}), 0) << err_;
  EXPECT_THAT(err_, HasSubstr("warning: 1 of the weights are quantized already (blk.0.ffn_up.weight: Q8_0)"));
  ExpectError({"convert", "in.gguf", "c.gguf", "--preset", "w8a16"}, 2, "quantizes for safetensors, and OUT is a GGUF");
  ExpectError({"convert", "in", "c.gguf", "--preset", "gguf_q8_0"}, 4, "has no GGUF model");
  ExpectError({"convert", "in/config.json", "c.gguf", "--preset", "gguf_q8_0"}, 3, "does not begin with \"GGUF\"");
  ExpectError({"convert", "in.gguf", "c.gguf", "--preset", "gguf_q8_0", "--exclude", "x"}, 2,
              "have no meaning for a GGUF");
  ExpectError({"convert", "in", "c", "--preset", "gguf_q8_0"}, 2,
              "writes the GGUF type Q8_0, which only GGUF files have");
}

}  // namespace
}  // namespace aqt::serving
