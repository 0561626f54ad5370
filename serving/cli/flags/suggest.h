#ifndef AQT_SERVING_CLI_FLAGS_SUGGEST_H_
#define AQT_SERVING_CLI_FLAGS_SUGGEST_H_

// Values that a shell offers for an argument (`aqt completion`), kept with the argument.
//
//   app.add_option("--preset", flags.preset, "a preset")->check(Suggest(PresetNames()));
//
// CLI::IsMember suggests its values, too.

#include <string>
#include <vector>

namespace CLI {
class Option;
class Validator;
}  // namespace CLI

namespace aqt::serving {

// Accepts every value and does not appear in the help.
CLI::Validator Suggest(const std::vector<std::string>& values);

// The values that an argument suggests.
struct Suggestions {
  std::vector<std::string> values;  // empty if there are none
  bool only = false;                // no other value is accepted
};
Suggestions SuggestionsOf(const CLI::Option& option);

}  // namespace aqt::serving

#endif  // AQT_SERVING_CLI_FLAGS_SUGGEST_H_
