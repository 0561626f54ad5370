// `aqt completion` and `aqt man`. What they must name is read from the text of --help.

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "aqt/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "serving/cli/command.h"
#include "serving/cli/command_test_fixture.h"
#include "serving/tools/test_util.h"

namespace aqt::serving {
namespace {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr const char* kCommands[] = {"inspect", "plan",    "convert", "dequantize", "verify", "diff",       "explain",
                                     "config",  "program", "run",     "bench",      "serve",  "completion", "man"};

class DescribeTest : public CommandTest {
 protected:
  DescribeTest() : CommandTest(AqtMain) {}

  std::string Output(const std::vector<std::string>& args) {
    EXPECT_EQ(Run(args), 0) << err_;
    return out_;
  }
  // The flags in the help of a command: "--jobs", "-j".
  std::vector<std::string> FlagsOf(const std::string& command) {
    const std::string help = Output({command, "--help"});
    std::vector<std::string> flags;
    const std::vector<std::string> lines = absl::StrSplit(help, '\n');
    for (const std::string& line : lines) {
      const absl::string_view text = absl::StripLeadingAsciiWhitespace(line);
      if (!absl::StartsWith(text, "-")) continue;
      const std::vector<std::string> names = absl::StrSplit(text.substr(0, text.find(' ')), ',');
      flags.insert(flags.end(), names.begin(), names.end());
    }
    return flags;
  }
  // The part of `text` after the first `begin`, up to the next `end`.
  static std::string Between(absl::string_view text, const std::string& begin, const std::string& end) {
    const size_t at = text.find(begin);
    if (at == absl::string_view::npos) return "";
    text.remove_prefix(at + begin.size());
    return std::string(text.substr(0, text.find(end)));
  }
  // Whether a line has both.
  static bool HasLine(absl::string_view text, const std::string& a, const std::string& b) {
    const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
    return std::any_of(lines.begin(), lines.end(), [&](absl::string_view line) {
      return absl::StrContains(line, a) && absl::StrContains(line, b);
    });
  }
  // What a shell prints.
  static std::string Shell(const std::string& command) {
    std::FILE* pipe = popen(command.c_str(), "r");
    std::string text;
    for (int c; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
    EXPECT_EQ(pclose(pipe), 0) << command << "\n" << text;
    return text;
  }
  // What bash offers for the last of these words.
  std::vector<std::string> Complete(const std::vector<std::string>& words) {
    std::string quoted;
    for (const std::string& word : words) absl::StrAppend(&quoted, " '", word, "'");
    WriteText("complete.sh", absl::StrCat("source ./aqt.bash\nCOMP_WORDS=(aqt", quoted, ")\nCOMP_CWORD=", words.size(),
                                          "\n_aqt\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"));
    return absl::StrSplit(Shell("bash complete.sh"), '\n', absl::SkipEmpty());
  }
};

TEST_F(DescribeTest, EveryFlagOfEveryCommandIsNamed) {
  const std::string bash = Output({"completion", "bash"}), zsh = Output({"completion", "zsh"}),
                    fish = Output({"completion", "fish"}), man = Output({"man"});
  WriteText("aqt.bash", bash);
  const std::string help = Output({"--help"});
  for (const std::string command : kCommands) {
    EXPECT_THAT(help, HasSubstr(absl::StrCat("\n  ", command, " "))) << "kCommands is up to date";
    const std::vector<std::string> flags = FlagsOf(command);
    EXPECT_THAT(flags, Contains("--help")) << command;
    EXPECT_THAT(Complete({command, "-"}), IsSupersetOf(flags)) << command;
    // The parts of the other texts that are about this command.
    const std::string in_zsh = Between(zsh, absl::StrCat("\n      ", command, ") _arguments"), " ;;\n"),
                      in_man = Between(man, absl::StrCat("\n.SS ", command, "\n"), "\n.S");
    for (const std::string& flag : flags) {
      EXPECT_THAT(in_zsh, ContainsRegex(absl::StrCat("[')*]", flag, "[=+]?\\["))) << command;
      EXPECT_THAT(in_man, HasSubstr(absl::StrCat("\\fB", absl::StrReplaceAll(flag, {{"-", "\\-"}}), "\\fR")))
          << command;
      const bool is_long = absl::StartsWith(flag, "--");
      EXPECT_TRUE(HasLine(fish, absl::StrCat("'__fish_seen_subcommand_from ", command, "'"),
                          absl::StrCat(is_long ? " -l " : " -s ", flag.substr(is_long ? 2 : 1), " ")))
          << command << " " << flag;
    }
  }
  const std::vector<std::string> sections = absl::StrSplit(man, "\n.SS ");
  EXPECT_EQ(sections.size(), 1 + std::size(kCommands)) << "no other command";
}

TEST_F(DescribeTest, BashCompletes) {
  WriteText("aqt.bash", Output({"completion", "bash"}));
  WriteText("model.safetensors", "");
  WriteText("my config.textproto", "");
  Shell("bash -n aqt.bash");
  EXPECT_THAT(Complete({""}), IsSupersetOf(kCommands));
  EXPECT_THAT(Complete({"ver"}), ElementsAre("verify"));
  EXPECT_THAT(Complete({"--v"}), ElementsAre("--version"));
  EXPECT_THAT(Complete({"convert", "--pre"}), ElementsAre("--preset"));
  EXPECT_THAT(Complete({"convert", "in", "out", "--preset", "w8a8_"}), ElementsAre("w8a8_dynamic", "w8a8_static"));
  EXPECT_THAT(Complete({"plan", "--preset", "=", "w8a8_d"}), ElementsAre("w8a8_dynamic")) << "--preset=w8a8_d";
  EXPECT_THAT(Complete({"plan", "--preset", "="}), Contains("nvfp4")) << "--preset=";
  EXPECT_THAT(Complete({"convert", "in", "--rules", ""}), ElementsAre("compressed_tensors", "aqt"));
  EXPECT_THAT(Complete({"convert", "--progress", "n"}), ElementsAre("never"));
  EXPECT_THAT(Complete({"dequantize", "in", "out", "--dtype", "b"}), ElementsAre("bf16"));
  EXPECT_THAT(Complete({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  // Files.
  EXPECT_THAT(Complete({"inspect", "mod"}), ElementsAre("model.safetensors"));
  EXPECT_THAT(Complete({"verify", "in", "mod"}), ElementsAre("model.safetensors"));
  EXPECT_THAT(Complete({"verify", "in", "out", "mod"}), IsEmpty()) << "there is no third argument";
  EXPECT_THAT(Complete({"plan", "in", "--config", "my"}), ElementsAre("my config.textproto"));
  EXPECT_THAT(Complete({"diff", "--jobs", "2", "in/conf"}), ElementsAre("in/config.json"));
  EXPECT_THAT(Complete({"diff", "-j", ""}), IsEmpty());
  // Not files.
  EXPECT_THAT(Complete({"explain", "in", "mod"}), IsEmpty()) << "a tensor";
  EXPECT_THAT(Complete({"config", ""}), ElementsAre("dot_general", "inject", "convert"));
  // Both.
  EXPECT_THAT(Complete({"config", "inject", "int8_a"}), ElementsAre("int8_all"));
  EXPECT_THAT(Complete({"config", "inject", "my"}), ElementsAre("my config.textproto"));
}

// With the tools that the machine has.
TEST_F(DescribeTest, OtherProgramsReadThem) {
  WriteText("aqt.1", Output({"man"}));
  WriteText("_aqt", Output({"completion", "zsh"}));
  WriteText("aqt.fish", Output({"completion", "fish"}));
  const auto check = [](const std::string& tool, const std::string& command) {
    EXPECT_EQ(Shell(absl::StrCat("if command -v ", tool, " > /dev/null; then ", command, "; fi 2>&1")), "") << command;
  };
  check("groff", "groff -man -ww -Tutf8 -z aqt.1");
  // The page has no date: the same program prints the same bytes.
  check("mandoc", "mandoc -T lint -W warning aqt.1 | grep -v 'missing date' || true");
  check("zsh", "zsh -n _aqt");
  check("fish", "fish -n aqt.fish");
}

TEST_F(DescribeTest, TheManualPage) {
  const std::string man = Output({"man"});
  EXPECT_THAT(man, HasSubstr("\n.SH NAME\naqt \\- "));
  EXPECT_THAT(man, HasSubstr("\n.SH \"EXIT CODES\"\n"));
  EXPECT_THAT(man, HasSubstr("\\fB\\-\\-rules\\fR \\fINAME\\fR\n"));
  EXPECT_THAT(man, HasSubstr("\n.SS diff\n"));
  EXPECT_THAT(man, Not(HasSubstr("\n'"))) << "the control character of roff";
}

TEST_F(DescribeTest, ShellsAreNamed) {
  ExpectError({"completion"}, 2, "SHELL");
  ExpectError({"completion", "tcsh"}, 2, "tcsh");
}

}  // namespace
}  // namespace aqt::serving
