#include "aqt/models/families/activation.h"

#include "absl/strings/str_join.h"
#include "aqt/graph/basic_ops.h"
#include "aqt/ops/functions.h"

namespace aqt::models {
namespace {

struct Named {
  const char* name;
  Activation activation;
};
// The names of transformers. It computes the forms of one function in other orders, with rounding errors of their own.
constexpr Named kNamed[] = {{"gelu", Activation::kGelu},
                            {"gelu_accurate", Activation::kGeluTanh},
                            {"gelu_fast", Activation::kGeluTanh},
                            {"gelu_new", Activation::kGeluTanh},
                            {"gelu_python", Activation::kGelu},
                            {"gelu_pytorch_tanh", Activation::kGeluTanh},
                            {"quick_gelu", Activation::kQuickGelu},
                            {"relu", Activation::kRelu},
                            {"sigmoid", Activation::kSigmoid},
                            {"silu", Activation::kSilu},
                            {"swish", Activation::kSilu},
                            {"tanh", Activation::kTanh}};

}  // namespace

Activation ReadActivation(ConfigFields& fields, const std::string& name) {
  const std::string text = fields.Text(name, "gelu");
  for (const Named& named : kNamed) {
    if (text == named.name) return named.activation;
  }
  fields.Refuse(name, absl::StrJoin(kNamed, ", ", [](std::string* out, const Named& n) { *out += n.name; }));
  return Activation::kGelu;
}

Value Activate(const Value& x, Activation activation) {
  switch (activation) {
    case Activation::kGelu: return ops::Gelu(x);
    case Activation::kGeluTanh: return ops::GeluTanh(x);
    case Activation::kQuickGelu: return x * ops::Logistic(1.702 * x);
    case Activation::kRelu: return ops::Relu(x);
    case Activation::kSigmoid: return ops::Logistic(x);
    case Activation::kSilu: return ops::Silu(x);
    case Activation::kTanh: return ops::Tanh(x);
  }
  return x;
}

}  // namespace aqt::models
