#include "serving/cli/help/man_page.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "serving/cli/help/command_tree.h"
#include "serving/tools/version.h"

namespace aqt::serving {
namespace {

std::string Escape(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\e"}, {"-", "\\-"}, {"'", "\\(aq"}, {"^", "\\(ha"}, {"~", "\\(ti"}, {"`", "\\(ga"}});
}

// A line of text; it is not taken for a macro.
std::string Line(absl::string_view text) {
  return absl::StrCat(absl::StartsWith(text, ".") ? "\\&" : "", Escape(text), "\n");
}

std::string Bold(absl::string_view text) { return absl::StrCat("\\fB", Escape(text), "\\fR"); }
std::string Italic(absl::string_view text) { return absl::StrCat("\\fI", Escape(text), "\\fR"); }

// Lines that keep their breaks.
void AppendVerbatim(std::string& page, absl::string_view text) {
  absl::StrAppend(&page, ".nf\n");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) absl::StrAppend(&page, Line(line));
  absl::StrAppend(&page, ".fi\n");
}

// Sections of a footer: "Title:\ntext", separated by empty lines. `macro` begins one.
void AppendFooter(std::string& page, absl::string_view macro, absl::string_view footer) {
  for (const absl::string_view section : absl::StrSplit(footer, "\n\n", absl::SkipEmpty())) {
    const size_t end = section.find(":\n");
    if (end == absl::string_view::npos) {
      absl::StrAppend(&page, ".PP\n", Line(section));
      continue;
    }
    const bool heading = macro == ".SH";
    const std::string title =
        heading ? absl::AsciiStrToUpper(section.substr(0, end)) : std::string(section.substr(0, end + 1));
    absl::StrAppend(&page, macro, heading ? " \"" : "\n", Escape(title), heading ? "\"\n" : "\n");
    AppendVerbatim(page, section.substr(end + 2));
  }
}

void AppendArgument(std::string& page, const ArgumentInfo& argument) {
  std::vector<std::string> names;
  for (const std::string& name : argument.names) {
    names.push_back(absl::StrCat(Bold(name), argument.value.empty() ? "" : absl::StrCat(" ", Italic(argument.value))));
  }
  if (argument.positional()) names.push_back(Italic(argument.value));
  absl::StrAppend(&page, ".TP\n", absl::StrJoin(names, ", "), "\n", Line(argument.description));
  if (argument.suggestions.only) {
    absl::StrAppend(&page, ".br\n", Line(absl::StrCat("Values: ", absl::StrJoin(argument.suggestions.values, ", "))));
  }
}

void AppendCommand(std::string& page, const CommandInfo& command) {
  absl::StrAppend(&page, ".SS ", command.name, "\n", Line(absl::StrCat(command.description, ".")), ".PP\n",
                  Bold(absl::StrCat("aqt ", command.name)), " [", Italic("OPTIONS"), "]");
  for (const ArgumentInfo& argument : command.positional) {
    absl::StrAppend(&page, " ", argument.required ? "" : "[", Italic(argument.value), argument.required ? "" : "]");
  }
  absl::StrAppend(&page, "\n");
  for (const ArgumentInfo& argument : command.positional) AppendArgument(page, argument);
  for (const ArgumentInfo& option : command.options) AppendArgument(page, option);
  AppendFooter(page, ".PP", command.footer);
}

}  // namespace

std::string ManPage(const CLI::App& app) {
  const CommandInfo all = ReadCommand(app);
  const std::vector<CommandInfo> commands = ReadCommands(app);
  std::string page =
      absl::StrCat(".TH AQT 1 \"\" \"aqt ", kVersion, "\" \"User Commands\"\n.SH NAME\n", "aqt \\- ",
                   Escape(absl::StripSuffix(all.description, ".")), "\n.SH SYNOPSIS\n", Bold("aqt"), " ",
                   Italic("COMMAND"), " [", Italic("OPTIONS"), "] ", Italic("ARGUMENTS"), "\n.SH OPTIONS\n");
  for (const ArgumentInfo& option : all.options) AppendArgument(page, option);
  absl::StrAppend(&page, ".SH COMMANDS\n");
  for (const CommandInfo& command : commands) AppendCommand(page, command);
  AppendFooter(page, ".SH", all.footer);
  return page;
}

}  // namespace aqt::serving
