#include "aqt/models/families/encoder.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "aqt/io/json.h"

namespace aqt::models {
namespace {

struct Family {
  const char* model_type;
  std::unique_ptr<Encoder> (*make)(ConfigFields& fields);
};

constexpr Family kFamilies[] = {
    {"bert", MakeBert},   {"camembert", MakeRoberta},    {"distilbert", MakeDistilBert}, {"modernbert", MakeModernBert},
    {"mpnet", MakeMpnet}, {"nomic_bert", MakeNomicBert}, {"roberta", MakeRoberta},       {"xlm-roberta", MakeRoberta},
};

}  // namespace

absl::StatusOr<std::unique_ptr<Encoder>> MakeEncoder(ConfigFields& fields) {
  const std::string type = fields.Text("model_type", "");
  if (!fields.status().ok()) return fields.status();
  std::string known;
  for (const Family& family : kFamilies) {
    if (type == family.model_type) return family.make(fields);
    absl::StrAppend(&known, known.empty() ? "" : ", ", family.model_type);
  }
  return absl::UnimplementedError(absl::StrCat(fields.source(), ": model_type is ",
                                               type.empty() ? "missing" : io::QuoteForMessage(type),
                                               "; encoders of these types can be run: ", known));
}

}  // namespace aqt::models
