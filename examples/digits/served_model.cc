#include "examples/digits/served_model.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "aqt/core/status_macros.h"
#include "aqt/nn/train/state_file.h"
#include "aqt/transforms/quantize/inject_proto.h"
#include "aqt/transforms/quantize/serve.h"

namespace digits {
namespace {

constexpr char kHidden[] = "hidden", kInject[] = "inject";

absl::StatusOr<Hidden> ParseHidden(absl::string_view text) {
  Hidden hidden;
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    int64_t width;
    if (!absl::SimpleAtoi(part, &width) || width <= 0) {
      return absl::DataLossError(
          absl::StrCat("metadata \"", kHidden, "\" is \"", text, "\", expected widths such as 320,256"));
    }
    hidden.push_back(width);
  }
  return hidden;
}

// Checks that `values` are the inputs of the model's program.
absl::Status CheckValues(const ServedModel& model) {
  AQT_ASSIGN_OR_RETURN(const aqt::Program program, ServeProgram(model, /*rows=*/1));
  for (const aqt::Program::Port& port : program.inputs) {
    if (port.slot.kind == aqt::SlotKind::kData) continue;
    const auto it = model.values.find(port.slot);
    if (it == model.values.end()) return absl::NotFoundError(absl::StrCat(port.slot.ToString(), " is missing"));
    if (it->second.aval() != program.aval(port.var)) {
      return absl::InvalidArgumentError(absl::StrCat(port.slot.ToString(), " is ", it->second.aval().ToString(),
                                                     ", expected ", program.aval(port.var).ToString()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ServedModel> FromStateFile(aqt::nn::StateFile file) {
  for (const char* key : {kHidden, kInject}) {
    if (file.metadata.count(key) == 0) return absl::DataLossError(absl::StrCat("metadata \"", key, "\" is missing"));
  }
  ServedModel model;
  AQT_ASSIGN_OR_RETURN(model.hidden, ParseHidden(file.metadata[kHidden]));
  absl::StatusOr<aqt::InjectConfig> config = aqt::InjectConfigFromText(file.metadata[kInject], "metadata \"inject\"");
  if (!config.ok()) return absl::DataLossError(config.status().message());
  model.config = *std::move(config);
  model.values = std::move(file.state);
  if (const absl::Status status = CheckValues(model); !status.ok()) return absl::DataLossError(status.message());
  return model;
}

}  // namespace

absl::StatusOr<ServedModel> Freeze(const Hidden& hidden, const aqt::InjectConfig& config,
                                   const aqt::SlotValues& params) {
  AQT_ASSIGN_OR_RETURN(const aqt::Program model, LogitsProgram(hidden, /*rows=*/1));
  AQT_ASSIGN_OR_RETURN(aqt::SlotValues frozen, aqt::Freeze(model, config, params));
  return ServedModel{hidden, config, std::move(frozen)};
}

absl::Status Write(const ServedModel& model, const aqt::io::FileSystem& fs, absl::string_view path) {
  return aqt::nn::SaveState(
      fs, path, {model.values, {{kHidden, absl::StrJoin(model.hidden, ",")}, {kInject, aqt::ToText(model.config)}}});
}

absl::StatusOr<ServedModel> ReadServedModel(const aqt::io::FileSystem& fs, absl::string_view path) {
  AQT_ASSIGN_OR_RETURN(aqt::nn::StateFile file, aqt::nn::LoadState(fs, path));
  absl::StatusOr<ServedModel> model = FromStateFile(std::move(file));
  if (!model.ok()) return aqt::Annotate(model.status(), path);
  return model;
}

absl::StatusOr<aqt::Program> ServeProgram(const ServedModel& model, int64_t rows) {
  AQT_ASSIGN_OR_RETURN(const aqt::Program source, LogitsProgram(model.hidden, rows));
  return aqt::ServeProgram(source, model.config, model.values);
}

absl::StatusOr<aqt::Array> Serve(const ServedModel& model, const aqt::Array& pixels) {
  AQT_ASSIGN_OR_RETURN(const aqt::Program program, ServeProgram(model, pixels.shape()[0]));
  return Logits(program, model.values, pixels);
}

}  // namespace digits
