#include "serving/cli/help/completion.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "serving/cli/help/command_tree.h"

namespace aqt::serving {
namespace {

// In single quotes, for bash and zsh.
std::string Quote(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// ---- bash

// One branch of a `case`.
void AppendCase(std::string& script, absl::string_view pattern, absl::string_view action) {
  absl::StrAppend(&script, "      ", pattern, ") ", action, " ;;\n");
}

std::string BashAction(const ArgumentInfo& argument) {
  std::vector<std::string> actions;
  const std::vector<std::string>& values = argument.suggestions.values;
  if (!values.empty()) actions.push_back(absl::StrCat("words=", Quote(absl::StrJoin(values, " "))));
  if (argument.files) actions.push_back("files=1");
  return absl::StrJoin(actions, " ");
}

std::string NamesOf(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const ArgumentInfo& option : command.options)
    names.insert(names.end(), option.names.begin(), option.names.end());
  return absl::StrJoin(names, " ");
}

constexpr char kBashBegin[] = R"(_aqt() {
  local cur=${COMP_WORDS[COMP_CWORD]} command= option= place=0 words= files= word i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == '=' ]]; then continue  # --option=value is three words
    elif [[ -n $option ]]; then option=
    elif [[ $word != -* && -z $command ]]; then command=$word
    elif [[ $word != -* ]]; then place=$((place + 1))
    else case "$command $word" in
)";
constexpr char kBashOptions[] = R"(    esac; fi
  done
  [[ $cur == '=' ]] && cur=
  if [[ -z $option && $cur == -* ]]; then
    case "$command" in
)";
constexpr char kBashValues[] = R"(    esac
  else
    case "$command ${option:-$place}" in
)";
constexpr char kBashEnd[] = R"(    esac
  fi
  COMPREPLY=()
  [[ -n $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  if [[ -n $files ]]; then
    mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur")
    compopt -o filenames 2> /dev/null
  fi
  return 0
}
complete -F _aqt aqt
)";

// ---- zsh

std::string EscapeForZsh(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

// ":NAME:(a b)", or empty for a flag.
std::string ZshValue(const ArgumentInfo& argument) {
  if (argument.value.empty()) return "";
  const std::string values = absl::StrJoin(argument.suggestions.values, " ");
  return absl::StrCat(":", EscapeForZsh(argument.value), ":",
                      values.empty()   ? (argument.files ? "_files" : " ")
                      : argument.files ? absl::StrCat("{compadd -- ", values, "; _files}")
                                       : absl::StrCat("(", values, ")"));
}

// The specifications of arguments, for _arguments.
std::string ZshArguments(const CommandInfo& command) {
  std::string text;
  for (const ArgumentInfo& option : command.options) {
    const std::string before = option.repeats            ? "*"
                               : option.names.size() > 1 ? absl::StrCat("(", absl::StrJoin(option.names, " "), ")")
                                                         : "";
    for (const std::string& name : option.names) {
      const char* after = option.value.empty() ? "" : absl::StartsWith(name, "--") ? "=" : "+";
      absl::StrAppend(
          &text, " \\\n        ",
          Quote(absl::StrCat(before, name, after, "[", EscapeForZsh(option.description), "]", ZshValue(option))));
    }
  }
  for (size_t i = 0; i < command.positional.size(); ++i) {
    absl::StrAppend(&text, " \\\n        ", Quote(absl::StrCat(i + 1, ZshValue(command.positional[i]))));
  }
  return text;
}

// ---- fish

std::string QuoteForFish(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// An option has a line with its description, and one for the values: fish shows the description of a line beside each.
void AppendFish(std::string& script, absl::string_view condition, const ArgumentInfo& argument) {
  std::string begin = absl::StrCat("complete -c aqt -n ", QuoteForFish(condition));
  for (const std::string& name : argument.names) {
    const bool is_long = absl::StartsWith(name, "--");
    absl::StrAppend(&begin, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
  }
  if (!argument.positional() && !argument.value.empty()) absl::StrAppend(&begin, argument.files ? " -r" : " -x");
  if (argument.files) absl::StrAppend(&begin, " -F");
  absl::StrAppend(&script, begin, " -d ", QuoteForFish(argument.description), "\n");
  const std::string values = absl::StrJoin(argument.suggestions.values, " ");
  if (values.empty()) return;
  absl::StrAppend(&script, begin, " -a ", QuoteForFish(values), " -d ", argument.value, "\n");
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  const std::vector<CommandInfo> commands = ReadCommands(app);
  std::string script = "# bash completion for aqt: source <(aqt completion bash)\n";
  absl::StrAppend(&script, kBashBegin);
  for (const CommandInfo& command : commands) {
    std::vector<std::string> with_value;
    for (const ArgumentInfo& option : command.options) {
      if (option.value.empty()) continue;
      for (const std::string& name : option.names) with_value.push_back(Quote(absl::StrCat(command.name, " ", name)));
    }
    if (!with_value.empty()) AppendCase(script, absl::StrJoin(with_value, "|"), "option=$word");
  }
  absl::StrAppend(&script, kBashOptions);
  AppendCase(script, "''", absl::StrCat("words=", Quote(NamesOf(ReadCommand(app)))));
  for (const CommandInfo& command : commands) {
    AppendCase(script, command.name, absl::StrCat("words=", Quote(NamesOf(command))));
  }
  absl::StrAppend(&script, kBashValues);
  const auto append_name = [](std::string* out, const CommandInfo& command) { absl::StrAppend(out, command.name); };
  AppendCase(script, "' 0'", absl::StrCat("words=", Quote(absl::StrJoin(commands, " ", append_name))));
  for (const CommandInfo& command : commands) {
    for (size_t i = 0; i < command.positional.size(); ++i) {
      AppendCase(script, Quote(absl::StrCat(command.name, " ", i)), BashAction(command.positional[i]));
    }
    for (const ArgumentInfo& option : command.options) {
      const std::string action = BashAction(option);
      if (action.empty()) continue;
      for (const std::string& name : option.names) {
        AppendCase(script, Quote(absl::StrCat(command.name, " ", name)), action);
      }
    }
  }
  absl::StrAppend(&script, kBashEnd);
  return script;
}

std::string ZshCompletion(const CLI::App& app) {
  const std::vector<CommandInfo> commands = ReadCommands(app);
  std::string script =
      "#compdef aqt\n# zsh completion for aqt: a file _aqt in a folder of $fpath, or source <(aqt completion zsh)\n"
      "_aqt() {\n  local curcontext=$curcontext state line\n  typeset -A opt_args\n  local -a commands=(\n";
  for (const CommandInfo& command : commands) {
    absl::StrAppend(&script, "    ", Quote(absl::StrCat(command.name, ":", EscapeForZsh(command.description))), "\n");
  }
  absl::StrAppend(&script, "  )\n  _arguments -C", ZshArguments(ReadCommand(app)),
                  " \\\n        '1: :->command' '*:: :->argument'\n"
                  "  case $state in\n    command) _describe command commands ;;\n    argument) case $line[1] in\n");
  for (const CommandInfo& command : commands) {
    absl::StrAppend(&script, "      ", command.name, ") _arguments", ZshArguments(command), " ;;\n");
  }
  absl::StrAppend(
      &script, "    esac ;;\n  esac\n}\nif [[ $funcstack[1] == _aqt ]]; then _aqt \"$@\"; else compdef _aqt aqt; fi\n");
  return script;
}

std::string FishCompletion(const CLI::App& app) {
  std::string script = "# fish completion for aqt: aqt completion fish | source\ncomplete -c aqt -f\n";
  constexpr absl::string_view kNoCommand = "__fish_use_subcommand";
  for (const ArgumentInfo& option : ReadCommand(app).options) AppendFish(script, kNoCommand, option);
  for (const CommandInfo& command : ReadCommands(app)) {
    absl::StrAppend(&script, "complete -c aqt -n ", kNoCommand, " -a ", command.name, " -d ",
                    QuoteForFish(command.description), "\n");
    const std::string condition = absl::StrCat("__fish_seen_subcommand_from ", command.name);
    for (const ArgumentInfo& argument : command.positional) AppendFish(script, condition, argument);
    for (const ArgumentInfo& option : command.options) AppendFish(script, condition, option);
  }
  return script;
}

}  // namespace aqt::serving
