#include "aqt/models/architecture.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/core/status_macros.h"
#include "aqt/io/file.h"
#include "aqt/io/printable.h"
#include "aqt/models/families/config_fields.h"
#include "aqt/models/read_pooling.h"

namespace aqt::models {

nn::WeightsMap Architecture::Weights() const {
  nn::WeightsMap map = encoder->Weights();
  const HeadLayers used = head.has_value() ? head->layers : HeadLayers();
  if (head.has_value()) AddHeadRules(used, map);
  for (const HeadLayers& layers : {encoder->SequenceHead(), encoder->TokenHead()}) IgnoreHead(layers, used, map);
  return map;
}

absl::StatusOr<Architecture> ReadArchitecture(const io::FileSystem& fs, absl::string_view folder) {
  Architecture result;
  if (const absl::StatusOr<io::FileInfo> info = fs.Stat(folder); info.ok() && info->kind != io::FileKind::kFolder) {
    return absl::InvalidArgumentError(
        absl::StrCat(io::PrintableLine(folder), " is a file; expected the folder of a model, with a config.json"));
  }
  AQT_ASSIGN_OR_RETURN(ConfigFields fields, ConfigFields::Open(fs, io::JoinPath(folder, "config.json")));
  AQT_ASSIGN_OR_RETURN(result.encoder, MakeEncoder(fields));
  AQT_RETURN_IF_ERROR(fields.status());
  AQT_ASSIGN_OR_RETURN(result.pooling, ReadPooling(fs, folder, result.encoder->facts().width));
  AQT_ASSIGN_OR_RETURN(result.head, ReadHead(fs, folder, *result.encoder, result.pooling.given, fields));
  AQT_RETURN_IF_ERROR(fields.Finish());
  return result;
}

}  // namespace aqt::models
