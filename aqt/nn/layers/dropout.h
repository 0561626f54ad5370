#ifndef AQT_NN_LAYERS_DROPOUT_H_
#define AQT_NN_LAYERS_DROPOUT_H_

#include <source_location>

#include "absl/strings/string_view.h"
#include "aqt/graph/value.h"

namespace aqt::nn {

// The options of Dropout.
struct DropoutOptions {
  double rate = 0.0;  // the fraction of elements that become 0; in [0, 1)
  bool train = true;  // if false, or with rate 0, x passes unchanged
};

// Each element is x / (1 - rate) with probability 1 - rate, else 0 (Srivastava et al., 2014). The random numbers are
// those of ops::RandomUniform with the input of kind key "<scope>/<name>/dropout"; nn::Trainer makes a new key for each
// step. Poisoned: InvalidArgument if the rate is out of range; AlreadyExists if the scope has a Dropout of this name,
// since both would drop the same elements.
Value Dropout(const Value& x, absl::string_view name, const DropoutOptions& options,
              const std::source_location& where = std::source_location::current());

}  // namespace aqt::nn

#endif  // AQT_NN_LAYERS_DROPOUT_H_
