#include "serving/cli/help/command_tree.h"

#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"

namespace aqt::serving {
namespace {

ArgumentInfo ReadArgument(const CLI::Option& option) {
  ArgumentInfo info;
  for (const std::string& name : option.get_lnames()) info.names.push_back(absl::StrCat("--", name));
  for (const std::string& name : option.get_snames()) info.names.push_back(absl::StrCat("-", name));
  info.description = option.get_description();
  info.suggestions = SuggestionsOf(option);
  info.required = option.get_required();
  info.repeats = option.get_items_expected_max() > 1;
  const std::string type = option.get_type_name();
  const std::string type_name = type.substr(0, type.find(':'));  // without the validators
  if (info.positional()) {
    info.value = option.get_name();
    info.files = type_name == "TEXT" && !info.suggestions.only;
  } else if (option.get_items_expected_max() > 0) {
    info.value = type_name;
    info.files = type_name == "FILE" || type_name == "PATH" || type_name == "CONFIG.JSON";
  }
  return info;
}

// The options of a command are in its option groups, too: commands without a name.
void ReadArguments(const CLI::App& command, CommandInfo& info) {
  for (const CLI::Option* option : command.get_options()) {
    ArgumentInfo argument = ReadArgument(*option);
    (argument.positional() ? info.positional : info.options).push_back(std::move(argument));
  }
  for (const CLI::App* group : command.get_subcommands({})) {
    if (group->get_name().empty()) ReadArguments(*group, info);
  }
}

}  // namespace

CommandInfo ReadCommand(const CLI::App& command) {
  CommandInfo info;
  info.name = command.get_name();
  info.description = command.get_description();
  info.footer = command.get_footer();
  ReadArguments(command, info);
  return info;
}

std::vector<CommandInfo> ReadCommands(const CLI::App& app) {
  std::vector<CommandInfo> commands;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (!command->get_name().empty()) commands.push_back(ReadCommand(*command));
  }
  return commands;
}

}  // namespace aqt::serving
