#include "aqt/models/families/activation.h"

#include "aqt/graph/basic_ops.h"
#include "aqt/ops/functions.h"

namespace aqt::models {

Activation ReadActivation(ConfigFields& fields, const std::string& name) {
  const std::string text = fields.Text(name, "gelu");
  if (text == "gelu") return Activation::kGelu;
  if (text == "gelu_new" || text == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (text == "relu") return Activation::kRelu;
  if (text == "silu" || text == "swish") return Activation::kSilu;
  if (text == "tanh") return Activation::kTanh;
  if (text == "sigmoid") return Activation::kSigmoid;
  fields.Refuse(name, "gelu, gelu_new, gelu_pytorch_tanh, relu, sigmoid, silu, swish or tanh");
  return Activation::kGelu;
}

Value Activate(const Value& x, Activation activation) {
  switch (activation) {
    case Activation::kGelu: return ops::Gelu(x);
    case Activation::kGeluTanh: return ops::GeluTanh(x);
    case Activation::kRelu: return ops::Relu(x);
    case Activation::kSigmoid: return ops::Logistic(x);
    case Activation::kSilu: return ops::Silu(x);
    case Activation::kTanh: return ops::Tanh(x);
  }
  return x;
}

}  // namespace aqt::models
