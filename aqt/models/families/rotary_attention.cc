#include "aqt/models/families/rotary_attention.h"

#include "absl/strings/str_cat.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/graph/context.h"
#include "aqt/models/families/weight_rules.h"
#include "aqt/nn/layers/attention.h"
#include "aqt/nn/layers/dense.h"

namespace aqt::models {

Value RotaryAttention(const Value& x, const Value& mask, const std::optional<nn::RotaryAngles>& angles,
                      const RotaryAttentionOptions& options) {
  const NamedScope scope("attention");
  const int64_t batch = x.dim(0), length = x.dim(1), heads = options.heads, features = x.dim(2) / heads;
  const Value qkv = nn::DenseGeneral(x, "qkv", {.features = {3, heads, features}, .use_bias = options.use_bias});
  const auto part = [&](int64_t i) {
    const Value slice = ops::Slice(qkv, {0, 0, i, 0, 0}, {batch, length, i + 1, heads, features});
    return ops::Reshape(slice, {batch, length, heads, features});
  };
  const auto turned = [&](const Value& value) {
    return angles.has_value() ? nn::RotaryEmbedding(value, *angles, options.pairs) : value;
  };
  const Value mixed = nn::DotProductAttention(turned(part(0)), turned(part(1)), part(2), mask, "attention");
  return nn::DenseGeneral(mixed, "out",
                          {.features = {heads * features}, .axes = {-2, -1}, .use_bias = options.use_bias});
}

double ReadRopeTheta(ConfigFields& fields, const std::string& name, double otherwise) {
  ConfigFields rope = fields.Object(name);
  rope.Only("rope_type", {R"("default")"});
  const double theta = rope.Positive("rope_theta", otherwise);
  fields.Add(rope.Finish());
  return theta;
}

void AddRotaryAttentionRules(absl::string_view qkv, absl::string_view out, absl::string_view scope, bool bias,
                             nn::WeightsMap& map) {
  AddDenseRules(qkv, absl::StrCat(scope, "/attention/qkv"), bias, /*split=*/true, map);
  AddDenseRules(out, absl::StrCat(scope, "/attention/out"), bias, /*split=*/true, map);
}

}  // namespace aqt::models
