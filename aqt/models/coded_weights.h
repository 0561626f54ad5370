#ifndef AQT_MODELS_CODED_WEIGHTS_H_
#define AQT_MODELS_CODED_WEIGHTS_H_

// Weights that run as a folder stores them: the integers or 8-bit floats of a file become the frozen operands of the
// program's products, and rules quantize their inputs as the folder says. Tables of which rows are looked up stay as
// they are stored, too (coded_table.h).

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aqt/core/dot_dims.h"
#include "aqt/core/shape.h"
#include "aqt/graph/program.h"
#include "aqt/models/coded_table.h"
#include "aqt/nn/weights/weights_map.h"
#include "aqt/quant/config/config.h"
#include "aqt/stored/stored_weight.h"
#include "aqt/transforms/quantize/inject.h"

namespace aqt::models {

// Collects the weights of a model.
class CodedWeights {
 public:
  // The model, traced for any shape of its data. The errors of Inject.
  static absl::StatusOr<CodedWeights> Of(const Program& program);

  // Adds the weight of the tensor at `place`. Returns why the program cannot compute with it, as the end of a sentence
  // about several weights ("they are not matrices"); then nothing is added. Empty if it was added.
  absl::StatusOr<std::string> Add(const nn::WeightPlace& place, const stored::WeightCodes& codes);

  int64_t num_products() const { return size_; }
  const CodedTables& tables() const { return tables_; }
  // What Freeze stores for these weights: qvalues, scales, and scales of static inputs.
  SlotValues TakeFrozen() { return std::move(frozen_); }
  // One for each way of quantizing. Each takes these values as they are.
  std::vector<InjectRule> Rules() const;

 private:
  // A product whose rhs is a parameter, which nothing else uses.
  struct Product {
    std::string name, scope;
    DotDims dims;
    Shape lhs;
  };
  struct Group {
    DotGeneralConfig config;
    bool static_input = false;
    std::vector<std::string> scopes;
  };
  // The axes of a weight in its product.
  struct Layout;

  std::string AddTable(const nn::WeightPlace& place, const stored::WeightCodes& codes);

  std::map<Slot, Product> products_;
  std::set<Slot> looked_up_;  // parameters that are only used as tables
  CodedTables tables_;
  std::vector<Group> groups_;
  SlotValues frozen_;
  int64_t size_ = 0;
};

}  // namespace aqt::models

#endif  // AQT_MODELS_CODED_WEIGHTS_H_
